#define _GNU_SOURCE
#include "engine.h"

#include <errno.h>
#include <fcntl.h>
#include <openssl/err.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "response.h"

#define READ_SIZE (256 * 1024)
#define MAX_EVENTS 512

enum stage { OPENING, READY, RUNNING, HOLDING, OVER };
enum connection_state { CLOSED, HANDSHAKE, IDLE, ACTIVE };

struct connection {
    enum connection_state state;
    int fd;
    uint32_t interest;
    SSL *ssl;
    size_t sent;
    uint64_t start_ns;
    struct response response;
};

struct engine {
    const struct load *load;
    struct load_result *result;
    void (*on_result)(const struct load_result *);
    struct response_rules rules;
    enum stage stage;
    int epoll;
    struct connection *connections;
    struct connection **idle; /* a ring: the connection that has rested longest is used next */
    uint64_t idle_head, idle_count;
    uint64_t opened, in_handshake, streaming;
    uint64_t quota, issued, completed; /* of the current stage, warm-up or measurement */
    uint64_t began_ns, stage_ns, end_ns;
    int64_t length;
    SSL_SESSION *session;
};

static struct engine engine;
static char read_buffer[READ_SIZE];

static void fail(const char *error, const char *format, ...) __attribute__((format(printf, 2, 3)));

static void finish(void) {
    if (engine.stage == RUNNING) engine.result->measured_ns = now_ns() - engine.stage_ns;
    engine.stage = engine.load->gate && engine.result->error == NULL ? HOLDING : OVER;
    engine.on_result(engine.result);
}

/* A load with one failure has no figure: the first ends the run. */
static void fail(const char *error, const char *format, ...) {
    if (engine.result->error != NULL) return;
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(engine.result->detail, sizeof engine.result->detail, format, arguments);
    va_end(arguments);
    engine.result->error = error;
    if (engine.stage != HOLDING) finish();
    engine.stage = OVER;
}

static void fail_tls(const char *doing, SSL *ssl, int outcome) {
    int kind = SSL_get_error(ssl, outcome);
    unsigned long code = ERR_peek_error();
    if (kind == SSL_ERROR_SSL && code != 0) fail("tls", "%s: %s", doing, ERR_reason_error_string(code));
    else if (kind == SSL_ERROR_SYSCALL && errno != 0) fail("connection", "%s: %s", doing, strerror(errno));
    else fail("closed", "%s: the peer closed the connection", doing);
}

static void watch_for(struct connection *connection, uint32_t interest) {
    if (connection->interest == interest) return;
    struct epoll_event event = {.events = interest, .data.ptr = connection};
    int operation = connection->interest ? EPOLL_CTL_MOD : EPOLL_CTL_ADD;
    if (epoll_ctl(engine.epoll, operation, connection->fd, &event) != 0) die("epoll_ctl: %s", strerror(errno));
    connection->interest = interest;
}

static int remember_session(SSL *ssl, SSL_SESSION *session) {
    (void)ssl;
    SSL_SESSION_free(engine.session);
    engine.session = session;
    return 1; /* the reference is ours */
}

static void dial(struct connection *connection) {
    connection->fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (connection->fd < 0) die("socket: %s", strerror(errno));
    set_nodelay(connection->fd);
    const struct sockaddr *address = (const struct sockaddr *)&engine.load->address;
    if (connect(connection->fd, address, sizeof engine.load->address) != 0 && errno != EINPROGRESS) {
        fail("connection", "connect: %s", strerror(errno));
        return;
    }
    connection->start_ns = now_ns();
    connection->ssl = SSL_new(engine.load->tls);
    if (connection->ssl == NULL || SSL_set_fd(connection->ssl, connection->fd) != 1) die("SSL_new failed");
    SSL_set_tlsext_host_name(connection->ssl, engine.load->server_name);
    SSL_set1_host(connection->ssl, engine.load->server_name);
    SSL_set_connect_state(connection->ssl);
    if (engine.load->reuse == NEW_RESUMED && engine.session != NULL) {
        /* A copy: libssl bars a session from use once a connection that shares it has got a newer ticket. */
        SSL_SESSION *copy = SSL_SESSION_dup(engine.session);
        SSL_set_session(connection->ssl, copy);
        SSL_SESSION_free(copy);
    }
    connection->state = HANDSHAKE;
    connection->interest = 0;
    engine.in_handshake++;
    watch_for(connection, EPOLLIN | EPOLLOUT);
}

static void hang_up(struct connection *connection) {
    SSL_shutdown(connection->ssl); /* says close_notify, does not wait for the peer's */
    SSL_free(connection->ssl);
    close(connection->fd);
    connection->state = CLOSED;
}

static bool reusing(void) { return engine.load->reuse == KEEP_ALIVE; }

static void rest(struct connection *connection) {
    connection->state = IDLE;
    engine.idle[(engine.idle_head + engine.idle_count++) % engine.load->connections] = connection;
}

static void send_request(struct connection *connection) {
    while (connection->sent < engine.load->request_length) {
        ERR_clear_error();
        errno = 0;
        int outcome = SSL_write(connection->ssl, engine.load->request + connection->sent,
                                (int)(engine.load->request_length - connection->sent));
        if (outcome > 0) {
            connection->sent += (size_t)outcome;
        } else if (SSL_get_error(connection->ssl, outcome) == SSL_ERROR_WANT_WRITE) {
            watch_for(connection, EPOLLIN | EPOLLOUT);
            return;
        } else {
            fail_tls("sending a request", connection->ssl, outcome);
            return;
        }
    }
    watch_for(connection, EPOLLIN);
}

static void start_request(struct connection *connection, uint64_t start_ns) {
    connection->state = ACTIVE;
    connection->start_ns = start_ns;
    connection->sent = 0;
    response_reset(&connection->response);
    engine.issued++;
    send_request(connection);
}

static void next_request(struct connection *connection) {
    if (engine.issued < engine.quota) start_request(connection, now_ns());
    else rest(connection);
}

static void check(const struct response *response) {
    const struct load *load = engine.load;
    if (response->status != load->status) {
        fail("status", "status %d instead of %d", response->status, load->status);
    } else if (load->required_name != NULL && response->required != 1) {
        fail("header", "%u lines of %s instead of one", response->required, load->required_name);
    } else if (load->mode != WATCH) {
        if (engine.length < 0) engine.length = (int64_t)response->body;
        if ((int64_t)response->body != engine.length)
            fail("length", "%llu body bytes instead of %lld", (unsigned long long)response->body,
                 (long long)engine.length);
    }
}

static void complete(struct connection *connection) {
    const struct response *response = &connection->response;
    check(response);
    engine.completed++;
    if (engine.stage == RUNNING) {
        engine.result->responses++;
        engine.result->body_bytes += response->body;
        histogram_add(&engine.result->latency, now_ns() - connection->start_ns);
    }
    if (engine.load->mode == WATCH) {
        fail("closed", "a watch ended by itself");
    } else if (!reusing()) {
        hang_up(connection);
        if (engine.issued + engine.in_handshake < engine.quota) dial(connection);
    } else if (engine.stage == RUNNING && engine.load->mode == OPEN_LOOP) {
        rest(connection);
    } else {
        next_request(connection);
    }
}

static void read_response(struct connection *connection) {
    while (connection->state == ACTIVE || connection->state == IDLE) {
        ERR_clear_error();
        errno = 0;
        int outcome = SSL_read(connection->ssl, read_buffer, READ_SIZE);
        if (outcome <= 0) {
            if (SSL_get_error(connection->ssl, outcome) != SSL_ERROR_WANT_READ)
                fail_tls("reading a response", connection->ssl, outcome);
            return;
        }
        if (connection->state == IDLE) {
            fail("framing", "bytes on an idle connection");
            return;
        }
        bool had_head = connection->response.phase != IN_HEAD;
        const char *error;
        if (!response_feed(&connection->response, &engine.rules, read_buffer, (size_t)outcome, &error)) {
            fail("framing", "%s", error);
            return;
        }
        if (engine.load->mode == WATCH && !had_head && connection->response.phase != IN_HEAD) {
            check(&connection->response);
            engine.streaming++;
        }
        if (connection->response.phase == COMPLETE) {
            complete(connection);
            return;
        }
        if (engine.stage == OVER) return;
    }
}

static void open_more(void) {
    const struct load *load = engine.load;
    uint64_t pending = engine.in_handshake + (load->mode == WATCH ? engine.issued - engine.streaming : 0);
    while (engine.opened < load->connections && pending < load->opening && engine.stage != OVER) {
        dial(&engine.connections[engine.opened++]);
        pending++;
    }
}

static void shake_hands(struct connection *connection) {
    ERR_clear_error();
    errno = 0;
    int outcome = SSL_do_handshake(connection->ssl);
    if (outcome != 1) {
        int kind = SSL_get_error(connection->ssl, outcome);
        if (kind == SSL_ERROR_WANT_READ) watch_for(connection, EPOLLIN);
        else if (kind == SSL_ERROR_WANT_WRITE) watch_for(connection, EPOLLIN | EPOLLOUT);
        else fail_tls("handshake", connection->ssl, outcome);
        return;
    }
    struct load_result *result = engine.result;
    engine.in_handshake--;
    if (engine.stage == RUNNING || reusing()) {
        result->handshakes++;
        result->resumed += (uint64_t)SSL_session_reused(connection->ssl);
    }
    snprintf(result->protocol, sizeof result->protocol, "%s", SSL_get_version(connection->ssl));
    snprintf(result->cipher, sizeof result->cipher, "%s", SSL_get_cipher_name(connection->ssl));
    watch_for(connection, EPOLLIN);
    if (engine.load->mode == WATCH || !reusing()) start_request(connection, connection->start_ns);
    else next_request(connection);
}

static void advance(struct connection *connection) {
    if (connection->state == HANDSHAKE) shake_hands(connection);
    if (connection->state == ACTIVE && connection->sent < engine.load->request_length) send_request(connection);
    if (engine.stage != OVER) read_response(connection);
}

static void count_event(void *user, uint64_t sent_at_ns) {
    (void)user;
    if (engine.stage != RUNNING) return;
    engine.result->events++;
    if (sent_at_ns != 0) histogram_add(&engine.result->latency, now_ns() - sent_at_ns);
}

static void start_measuring(void) {
    const struct load *load = engine.load;
    engine.stage = RUNNING;
    engine.stage_ns = now_ns();
    engine.end_ns = engine.stage_ns + load->duration_ns;
    if (load->mode == WATCH) return;
    engine.quota = load->requests;
    engine.issued = engine.completed = 0;
    if (load->mode == OPEN_LOOP) return;
    uint64_t at_once = load->connections < load->requests ? load->connections : load->requests;
    for (uint64_t index = 0; index < at_once && engine.stage == RUNNING; index++) {
        if (reusing()) {
            struct connection *connection = engine.idle[engine.idle_head];
            engine.idle_head = (engine.idle_head + 1) % load->connections;
            engine.idle_count--;
            next_request(connection);
        } else {
            dial(&engine.connections[index]);
        }
    }
}

static bool warmed_up(void) {
    const struct load *load = engine.load;
    if (load->mode == WATCH) return engine.streaming == load->connections;
    if (!reusing()) return engine.completed >= load->warm_up;
    return engine.idle_count == load->connections && engine.completed >= load->warm_up;
}

static uint64_t due_ns(uint64_t request) {
    return engine.stage_ns + (uint64_t)((double)request * (double)NANOSECONDS / engine.load->rate);
}

/* Moves the run on where its stage is over; returns when to look again at the latest. */
static uint64_t step(uint64_t now) {
    const struct load *load = engine.load;
    if (engine.stage == OPENING) {
        if (reusing() || load->mode == WATCH) open_more();
        if (engine.stage == OPENING && warmed_up()) {
            engine.result->opened_ns = now - engine.began_ns;
            if (load->gate) {
                engine.stage = READY;
                puts("ready");
                fflush(stdout);
            } else {
                start_measuring();
            }
        }
    }
    if (engine.stage == RUNNING && load->mode == OPEN_LOOP) {
        while (engine.issued < engine.quota && due_ns(engine.issued) <= now && engine.idle_count > 0 &&
               engine.stage == RUNNING) {
            struct connection *connection = engine.idle[engine.idle_head];
            engine.idle_head = (engine.idle_head + 1) % load->connections;
            engine.idle_count--;
            start_request(connection, due_ns(engine.issued));
        }
    }
    if (engine.stage == RUNNING) {
        if (load->mode == WATCH ? now >= engine.end_ns : engine.completed == engine.quota) finish();
    }
    uint64_t wake = engine.began_ns + load->deadline_ns;
    if (engine.stage == RUNNING && load->mode == WATCH && engine.end_ns < wake) wake = engine.end_ns;
    if (engine.stage == RUNNING && load->mode == OPEN_LOOP && engine.issued < engine.quota && engine.idle_count > 0 &&
        due_ns(engine.issued) < wake)
        wake = due_ns(engine.issued);
    return wake;
}

static void read_gate(void) {
    char line[64];
    ssize_t got = read(STDIN_FILENO, line, sizeof line);
    if (got > 0 && engine.stage == READY) start_measuring();
    else if (got <= 0) engine.stage = OVER;
}

void run_load(const struct load *load, struct load_result *result, void (*on_result)(const struct load_result *)) {
    engine = (struct engine){.load = load, .result = result, .on_result = on_result, .length = load->length};
    engine.rules = (struct response_rules){.required_name = load->required_name,
                                           .on_line = load->mode == WATCH ? count_event : NULL};
    engine.quota = load->warm_up;
    engine.began_ns = now_ns();
    engine.epoll = epoll_create1(EPOLL_CLOEXEC);
    engine.connections = calloc(load->connections, sizeof *engine.connections);
    engine.idle = calloc(load->connections, sizeof *engine.idle);
    if (engine.epoll < 0 || engine.connections == NULL || engine.idle == NULL) die("out of resources");
    SSL_CTX_set_session_cache_mode(load->tls, SSL_SESS_CACHE_CLIENT | SSL_SESS_CACHE_NO_INTERNAL_STORE);
    SSL_CTX_sess_set_new_cb(load->tls, remember_session);
    if (load->gate) {
        struct epoll_event event = {.events = EPOLLIN, .data.ptr = NULL};
        if (epoll_ctl(engine.epoll, EPOLL_CTL_ADD, STDIN_FILENO, &event) != 0)
            die("--gate wants a pipe as standard input: %s", strerror(errno));
    }
    if (!reusing() && load->mode != WATCH) {
        uint64_t at_once = load->warm_up < load->connections ? load->warm_up : load->connections;
        while (engine.opened < at_once) dial(&engine.connections[engine.opened++]);
    }
    static struct epoll_event events[MAX_EVENTS];
    while (engine.stage != OVER) {
        uint64_t now = now_ns(), wake = step(now);
        if (engine.stage == OVER) break;
        if (now >= engine.began_ns + load->deadline_ns) {
            fail("deadline", "not done in time: %llu of %llu answered", (unsigned long long)engine.completed,
                 (unsigned long long)engine.quota);
            break;
        }
        struct timespec timeout = to_timespec(wake > now ? wake - now : 0);
        int count = epoll_pwait2(engine.epoll, events, MAX_EVENTS, &timeout, NULL);
        if (count < 0 && errno != EINTR) die("epoll_pwait2: %s", strerror(errno));
        for (int index = 0; index < count && engine.stage != OVER; index++) {
            if (events[index].data.ptr == NULL) read_gate();
            else advance(events[index].data.ptr);
        }
    }
}
