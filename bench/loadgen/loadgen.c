/* loadgen: HTTP/1.1 over TLS 1.3 with a client certificate, from one thread. Prints one line of JSON; exits with
 * 0 when every response passed every check, 1 otherwise. Bounded in count and in time, always. */
#define _GNU_SOURCE
#include <errno.h>
#include <getopt.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>

#include "engine.h"

static const char USAGE[] =
    "usage: loadgen --mode closed|open|watch --connect IPV4:PORT --head FILE --ca FILE [options]\n"
    "  --server-name NAME       SNI and the name checked in the certificate (kubernetes)\n"
    "  --cert FILE --key FILE   client certificate\n"
    "  --connections N          connections, or watches (48)\n"
    "  --opening N              at most so many at once in their handshake (64)\n"
    "  --reuse keep-alive|new|resumed   new: a full handshake per request; resumed: with the last ticket\n"
    "  --warm-up N              requests before the measurement (0)\n"
    "  --requests N             closed loop: requests measured\n"
    "  --rate R --duration S    open loop: R requests a second for S seconds; watch: S seconds of events\n"
    "  --deadline S             the end of everything (60)\n"
    "  --status N --length N    what every response must have (200; as the first)\n"
    "  --require-header NAME    every response must bear it exactly once\n"
    "  --gate                   say \"ready\" after the warm-up and wait for a line of input; after the result keep\n"
    "                           the connections until the input ends\n";

static const struct option OPTIONS[] = {
    {"mode", required_argument, NULL, 'm'},       {"connect", required_argument, NULL, 'a'},
    {"head", required_argument, NULL, 'h'},       {"ca", required_argument, NULL, 'C'},
    {"server-name", required_argument, NULL, 'n'}, {"cert", required_argument, NULL, 'c'},
    {"key", required_argument, NULL, 'k'},        {"connections", required_argument, NULL, 'N'},
    {"opening", required_argument, NULL, 'o'},    {"reuse", required_argument, NULL, 'u'},
    {"warm-up", required_argument, NULL, 'w'},    {"requests", required_argument, NULL, 'q'},
    {"rate", required_argument, NULL, 'r'},       {"duration", required_argument, NULL, 'd'},
    {"deadline", required_argument, NULL, 'D'},   {"status", required_argument, NULL, 's'},
    {"length", required_argument, NULL, 'l'},     {"require-header", required_argument, NULL, 'H'},
    {"gate", no_argument, NULL, 'g'},             {NULL, 0, NULL, 0},
};

/* The head as it goes on the wire: lines may end in LF, the empty line may be left out. */
static char *read_head(const char *path, size_t *length) {
    FILE *file = fopen(path, "r");
    if (file == NULL) die("%s: %s", path, strerror(errno));
    char *line = NULL, *head = NULL;
    size_t size = 0;
    ssize_t got;
    FILE *out = open_memstream(&head, length);
    while ((got = getline(&line, &size, file)) > 0) {
        while (got > 0 && (line[got - 1] == '\n' || line[got - 1] == '\r')) got--;
        if (got == 0) break;
        fprintf(out, "%.*s\r\n", (int)got, line);
    }
    fputs("\r\n", out);
    fclose(out);
    fclose(file);
    free(line);
    return head;
}

static int one_of(const char *option, const char *text, const char *const *names) {
    for (int index = 0; names[index] != NULL; index++)
        if (strcmp(text, names[index]) == 0) return index;
    die("--%s: %s is not known\n%s", option, text, USAGE);
}

static void print_result(const struct load_result *result) {
    double seconds = (double)result->measured_ns / 1e9;
    const struct histogram *latency = &result->latency;
    printf("{\"ok\": %s, \"error\": \"%s\", \"detail\": \"%s\", \"responses\": %llu, \"bytes\": %llu, "
           "\"events\": %llu, \"handshakes\": %llu, \"resumed\": %llu, \"openSeconds\": %.6f, \"seconds\": %.6f, "
           "\"tls\": \"%s\", \"cipher\": \"%s\", \"latencyMicroseconds\": {\"samples\": %llu, \"p50\": %.1f, "
           "\"p90\": %.1f, \"p99\": %.1f, \"max\": %.1f, \"mean\": %.1f}}\n",
           result->error == NULL ? "true" : "false", result->error == NULL ? "" : result->error, result->detail,
           (unsigned long long)result->responses, (unsigned long long)result->body_bytes,
           (unsigned long long)result->events, (unsigned long long)result->handshakes,
           (unsigned long long)result->resumed, (double)result->opened_ns / 1e9, seconds, result->protocol,
           result->cipher, (unsigned long long)latency->count, (double)histogram_quantile(latency, 0.5) / 1e3,
           (double)histogram_quantile(latency, 0.9) / 1e3, (double)histogram_quantile(latency, 0.99) / 1e3,
           (double)latency->max / 1e3, latency->count ? (double)latency->sum / (double)latency->count / 1e3 : 0.0);
    fflush(stdout);
}

int main(int argc, char **argv) {
    static const char *const modes[] = {"closed", "open", "watch", NULL};
    static const char *const reuses[] = {"keep-alive", "new", "resumed", NULL};
    static struct load_result result;
    struct load load = {.server_name = "kubernetes", .connections = 48, .opening = 64, .status = 200, .length = -1,
                        .deadline_ns = 60 * NANOSECONDS};
    const char *head = NULL, *ca = NULL, *cert = NULL, *key = NULL, *connect_to = NULL;
    double duration = 0;
    bool has_mode = false;
    int option, index = 0;
    while ((option = getopt_long(argc, argv, "", OPTIONS, &index)) != -1) {
        const char *name = option == '?' ? "" : OPTIONS[index].name;
        switch (option) {
        case 'm': load.mode = (enum load_mode)one_of(name, optarg, modes), has_mode = true; break;
        case 'a': connect_to = optarg; break;
        case 'h': head = optarg; break;
        case 'C': ca = optarg; break;
        case 'n': load.server_name = optarg; break;
        case 'c': cert = optarg; break;
        case 'k': key = optarg; break;
        case 'N': load.connections = (uint64_t)parse_number(name, optarg, 1, 50000); break;
        case 'o': load.opening = (uint64_t)parse_number(name, optarg, 1, 50000); break;
        case 'u': load.reuse = (enum connection_reuse)one_of(name, optarg, reuses); break;
        case 'w': load.warm_up = (uint64_t)parse_number(name, optarg, 0, 1e6); break;
        case 'q': load.requests = (uint64_t)parse_number(name, optarg, 1, 1e7); break;
        case 'r': load.rate = parse_number(name, optarg, 1, 1e6); break;
        case 'd': duration = parse_number(name, optarg, 0, 600); break;
        case 'D': load.deadline_ns = (uint64_t)(parse_number(name, optarg, 1, 1200) * 1e9); break;
        case 's': load.status = (int)parse_number(name, optarg, 100, 599); break;
        case 'l': load.length = (int64_t)parse_number(name, optarg, 0, 1e12); break;
        case 'H': load.required_name = optarg; break;
        case 'g': load.gate = true; break;
        default: die("%s", USAGE);
        }
    }
    if (!has_mode || connect_to == NULL || head == NULL || ca == NULL || (cert == NULL) != (key == NULL))
        die("%s", USAGE);
    if (load.mode == OPEN_LOOP) load.requests = (uint64_t)(load.rate * duration);
    if (load.mode != WATCH && load.requests == 0) die("nothing to do: no --requests, or no --rate and --duration");
    if (load.reuse != KEEP_ALIVE && load.mode != CLOSED_LOOP) die("--reuse new and resumed are for the closed loop");
    if (load.reuse == NEW_RESUMED && load.warm_up == 0) die("--reuse resumed needs a --warm-up, for its first ticket");
    load.duration_ns = (uint64_t)(duration * 1e9);
    load.address = parse_address(connect_to);
    load.request = read_head(head, &load.request_length);
    load.tls = tls_context(TLS_client_method(), cert, key, ca);
    SSL_CTX_set_verify(load.tls, SSL_VERIFY_PEER, NULL);
    static const unsigned char http11[] = "\x08http/1.1";
    SSL_CTX_set_alpn_protos(load.tls, http11, sizeof http11 - 1);
    raise_open_files(load.connections + 32);
    signal(SIGPIPE, SIG_IGN);
    prctl(PR_SET_TIMERSLACK, 1UL, 0UL, 0UL, 0UL); /* an open loop is only as good as its clock */
    run_load(&load, &result, print_result);
    return result.error == NULL ? 0 : 1;
}
