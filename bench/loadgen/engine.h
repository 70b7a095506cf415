/* The load: connections, one epoll loop, one thread. */
#ifndef BENCH_ENGINE_H
#define BENCH_ENGINE_H

#include "common.h"
#include "histogram.h"

enum load_mode {
    CLOSED_LOOP, /* every connection sends its next request when the last is answered */
    OPEN_LOOP,   /* requests at a fixed rate, latency from the moment each was due */
    WATCH,       /* every connection holds one streamed response open and counts its lines */
};

enum connection_reuse { KEEP_ALIVE, NEW_FULL, NEW_RESUMED };

struct load {
    enum load_mode mode;
    enum connection_reuse reuse;
    struct sockaddr_in address;
    SSL_CTX *tls;
    const char *server_name;
    const char *request;
    size_t request_length;
    uint64_t connections, opening; /* in all; at most so many at once in their handshake */
    uint64_t warm_up, requests;
    double rate;                           /* requests a second, open loop */
    uint64_t duration_ns, deadline_ns;     /* of a watch; of everything, from the start */
    int status;                            /* that every response must bear */
    int64_t length;                        /* body bytes that every response must have; -1: as the first one's */
    const char *required_name;             /* a header that every response must bear exactly once, or NULL */
    bool gate;                             /* say "ready", wait for a line; after the result wait for end of input */
};

struct load_result {
    const char *error;     /* NULL: every check passed */
    char detail[256];
    uint64_t responses, body_bytes, events, handshakes, resumed;
    uint64_t opened_ns;    /* what opening all connections (watch: to the response's head) took */
    uint64_t measured_ns;
    struct histogram latency; /* of a request (new connections: from the dial), or of an event's delivery */
    char protocol[16], cipher[48];
};

/* Runs the load to its end; `on_result` is called as soon as the measurement is over, with connections still open. */
void run_load(const struct load *load, struct load_result *result, void (*on_result)(const struct load_result *));

#endif
