/* watch_server: stands in for kube-apiserver's watches. HTTP/1.1 over TLS 1.3; a GET whose target has "watch=" gets a
 * chunked response without end; every 1/rate seconds each open stream gets one event, a chunk of one line, as an
 * object's change goes to all its watchers at once. /readyz answers 200, any other target 2 KiB. */
#define _GNU_SOURCE
#include <errno.h>
#include <getopt.h>
#include <openssl/err.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "../loadgen/common.h"

#define EVENT_SIZE 1024
#define REQUEST_LIMIT 8192
#define MAX_EVENTS 512
#define MAX_STREAMS 50000

static const char STREAM_HEAD[] =
    "HTTP/1.1 200 OK\r\n"
    "Audit-Id: 5a5d2bd6-5f5c-4b1e-9a2c-6d1f0f5f8d11\r\n"
    "Cache-Control: no-cache, private\r\n"
    "Content-Type: application/json\r\n"
    "X-Kubernetes-Pf-Flowschema-Uid: 2f9c6a4e-6f0a-4e0e-8a55-0c6f5a0e2b11\r\n"
    "X-Kubernetes-Pf-Prioritylevel-Uid: 7d1c8b0a-3f63-4dd4-9c3b-1b2a3c4d5e6f\r\n"
    "endpoint-load-metrics: TEXT cpu_utilization=0.4242, rps_fractional=1\r\n"
    "endpoint-load-metrics-bin: CQAAAAAAAOA/\r\n"
    "Transfer-Encoding: chunked\r\n\r\n";
static const char READY[] = "HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 2\r\n\r\nok";
static const char OBJECT_HEAD[] =
    "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 2048\r\n"
    "endpoint-load-metrics: TEXT cpu_utilization=0.4242, rps_fractional=1\r\n"
    "endpoint-load-metrics-bin: CQAAAAAAAOA/\r\n\r\n";
static char object[sizeof OBJECT_HEAD - 1 + 2048]; /* the head and 2 KiB */

enum state { HANDSHAKE, REQUEST, STREAMING };

struct connection {
    enum state state;
    int fd;
    SSL *ssl;
    size_t stream_index; /* in `streams`, while STREAMING */
    size_t length;       /* of the request so far */
    char *request;
    size_t rest_length; /* of an output that did not fit the socket */
    char *rest;
};

static struct connection *streams[MAX_STREAMS];
static size_t stream_count;
static int epoll_fd;

static void watch_for(struct connection *connection, int operation, uint32_t interest) {
    struct epoll_event event = {.events = interest, .data.ptr = connection};
    if (epoll_ctl(epoll_fd, operation, connection->fd, &event) != 0) die("epoll_ctl: %s", strerror(errno));
}

static void hang_up(struct connection *connection) {
    if (connection->state == STREAMING) {
        struct connection *last = streams[--stream_count];
        streams[connection->stream_index] = last;
        last->stream_index = connection->stream_index;
    }
    SSL_free(connection->ssl);
    close(connection->fd);
    free(connection->request);
    free(connection->rest);
    free(connection);
}

/* False where the connection is gone and freed. */
static bool send_all(struct connection *connection, const char *data, size_t length) {
    while (length > 0) {
        ERR_clear_error();
        int outcome = SSL_write(connection->ssl, data, (int)length);
        if (outcome <= 0) {
            if (SSL_get_error(connection->ssl, outcome) != SSL_ERROR_WANT_WRITE) {
                hang_up(connection);
                return false;
            }
            char *rest = malloc(length);
            if (rest == NULL) die("out of memory");
            memcpy(rest, data, length);
            free(connection->rest);
            connection->rest = rest;
            connection->rest_length = length;
            watch_for(connection, EPOLL_CTL_MOD, EPOLLIN | EPOLLOUT);
            return true;
        }
        data += outcome;
        length -= (size_t)outcome;
    }
    return true;
}

static void send_rest(struct connection *connection) {
    char *rest = connection->rest;
    connection->rest = NULL;
    watch_for(connection, EPOLL_CTL_MOD, EPOLLIN);
    send_all(connection, rest, connection->rest_length);
    free(rest);
}

static bool answer(struct connection *connection) {
    connection->request[connection->length] = '\0';
    if (memmem(connection->request, connection->length, "\r\n\r\n", 4) == NULL) return true;
    char *line_end = strchr(connection->request, '\r');
    *line_end = '\0';
    connection->length = 0;
    if (strncmp(connection->request, "GET /readyz ", 12) == 0) return send_all(connection, READY, sizeof READY - 1);
    if (strstr(connection->request, "watch=") == NULL) return send_all(connection, object, sizeof object);
    if (stream_count == MAX_STREAMS) die("more than %d watches", MAX_STREAMS);
    connection->state = STREAMING;
    connection->stream_index = stream_count;
    streams[stream_count++] = connection;
    free(connection->request);
    connection->request = NULL;
    return send_all(connection, STREAM_HEAD, sizeof STREAM_HEAD - 1);
}

static void serve(struct connection *connection) {
    if (connection->state == HANDSHAKE) {
        ERR_clear_error();
        int outcome = SSL_do_handshake(connection->ssl);
        if (outcome != 1) {
            if (SSL_get_error(connection->ssl, outcome) != SSL_ERROR_WANT_READ) hang_up(connection);
            return;
        }
        connection->state = REQUEST;
    }
    static char ignored[4096];
    for (;;) {
        bool streaming = connection->state == STREAMING;
        char *into = streaming ? ignored : connection->request + connection->length;
        size_t room = streaming ? sizeof ignored : REQUEST_LIMIT - 1 - connection->length;
        ERR_clear_error();
        int outcome = SSL_read(connection->ssl, into, (int)room);
        if (outcome <= 0) {
            if (SSL_get_error(connection->ssl, outcome) != SSL_ERROR_WANT_READ) hang_up(connection);
            return;
        }
        if (!streaming) {
            connection->length += (size_t)outcome;
            if (!answer(connection)) return;
            if (connection->state == REQUEST && connection->length == REQUEST_LIMIT - 1) {
                hang_up(connection);
                return;
            }
        }
    }
}

static void accept_all(int listener, SSL_CTX *tls) {
    int fd;
    while ((fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC)) >= 0) {
        set_nodelay(fd);
        struct connection *connection = calloc(1, sizeof *connection);
        if (connection == NULL || (connection->request = malloc(REQUEST_LIMIT)) == NULL) die("out of memory");
        connection->fd = fd;
        connection->ssl = SSL_new(tls);
        if (connection->ssl == NULL || SSL_set_fd(connection->ssl, fd) != 1) die("SSL_new failed");
        SSL_set_accept_state(connection->ssl);
        watch_for(connection, EPOLL_CTL_ADD, EPOLLIN);
    }
    if (errno != EAGAIN && errno != ECONNABORTED && errno != EINTR) die("accept: %s", strerror(errno));
}

/* A stream whose last event is not yet on its way gets none: the receiver's count tells. */
static void broadcast(void) {
    char chunk[EVENT_SIZE + 16];
    int framing = snprintf(chunk, sizeof chunk, "%x\r\n", EVENT_SIZE);
    int length = snprintf(chunk + framing, EVENT_SIZE, EVENT_PREFIX "%0*llu\",\"object\":{\"data\":\"", EVENT_CLOCK_DIGITS,
                          (unsigned long long)now_ns());
    memset(chunk + framing + length, 'x', (size_t)(EVENT_SIZE - length));
    memcpy(chunk + framing + EVENT_SIZE - 4, "\"}}\n\r\n", 6);
    for (size_t index = stream_count; index-- > 0;)
        if (streams[index]->rest == NULL) send_all(streams[index], chunk, (size_t)framing + EVENT_SIZE + 2);
}

static int listen_on(struct sockaddr_in address) {
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0), on = 1;
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (fd < 0 || bind(fd, (struct sockaddr *)&address, sizeof address) != 0 || listen(fd, 4096) != 0)
        die("listen: %s", strerror(errno));
    return fd;
}

static const struct option OPTIONS[] = {
    {"listen", required_argument, NULL, 'l'}, {"cert", required_argument, NULL, 'c'},
    {"key", required_argument, NULL, 'k'},    {"client-ca", required_argument, NULL, 'C'},
    {"rate", required_argument, NULL, 'r'},   {"max-seconds", required_argument, NULL, 'm'},
    {NULL, 0, NULL, 0},
};

int main(int argc, char **argv) {
    const char *address = NULL, *cert = NULL, *key = NULL, *client_ca = NULL;
    double rate = 0, max_seconds = 600;
    int option, index = 0;
    while ((option = getopt_long(argc, argv, "", OPTIONS, &index)) != -1) {
        switch (option) {
        case 'l': address = optarg; break;
        case 'c': cert = optarg; break;
        case 'k': key = optarg; break;
        case 'C': client_ca = optarg; break;
        case 'r': rate = parse_number("rate", optarg, 0, 10000); break;
        case 'm': max_seconds = parse_number("max-seconds", optarg, 1, 3600); break;
        default: address = NULL, optind = argc; break;
        }
    }
    if (address == NULL || cert == NULL || key == NULL || client_ca == NULL)
        die("usage: watch_server --listen IPV4:PORT --cert FILE --key FILE --client-ca FILE [--rate EVENTS_PER_SECOND] "
            "[--max-seconds S]");
    signal(SIGPIPE, SIG_IGN);
    raise_open_files(1024);
    memset(object, 'x', sizeof object);
    memcpy(object, OBJECT_HEAD, sizeof OBJECT_HEAD - 1);
    SSL_CTX *tls = tls_context(TLS_server_method(), cert, key, client_ca);
    SSL_CTX_set_verify(tls, SSL_VERIFY_PEER, NULL); /* asked for, not required */
    SSL_CTX_set_session_id_context(tls, (const unsigned char *)"watch", 5);
    epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    int listener = listen_on(parse_address(address));
    struct epoll_event accepting = {.events = EPOLLIN, .data.ptr = NULL};
    if (epoll_ctl(epoll_fd, EPOLL_CTL_ADD, listener, &accepting) != 0) die("epoll_ctl: %s", strerror(errno));
    static struct epoll_event events[MAX_EVENTS];
    uint64_t end = now_ns() + (uint64_t)(max_seconds * 1e9), period = rate > 0 ? (uint64_t)(1e9 / rate) : 0;
    uint64_t next = period ? now_ns() + period : end;
    for (uint64_t now = now_ns(); now < end; now = now_ns()) {
        if (period && now >= next) {
            broadcast();
            now = now_ns();
            next = next + period > now ? next + period : now; /* late: never a second burst at once */
        }
        uint64_t wake = next < end ? next : end;
        struct timespec timeout = to_timespec(wake > now ? wake - now : 0);
        int count = epoll_pwait2(epoll_fd, events, MAX_EVENTS, &timeout, NULL);
        if (count < 0 && errno != EINTR) die("epoll_pwait2: %s", strerror(errno));
        for (int at = 0; at < count; at++) {
            struct connection *connection = events[at].data.ptr;
            if (connection == NULL) accept_all(listener, tls);
            else if (connection->rest != NULL && events[at].events & EPOLLOUT) send_rest(connection);
            else serve(connection);
        }
    }
    return 0;
}
