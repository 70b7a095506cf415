/* An incremental, strict reader of HTTP/1.1 responses: Content-Length or chunked, nothing else. */
#ifndef BENCH_RESPONSE_H
#define BENCH_RESPONSE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common.h"

#define RESPONSE_HEAD_LIMIT 8192

enum response_phase { IN_HEAD, IN_LENGTH, IN_CHUNK_SIZE, IN_CHUNK, AFTER_CHUNK, IN_TRAILER, COMPLETE };

struct response {
    enum response_phase phase;
    int status;
    unsigned required;  /* how many header lines bore the required name */
    uint64_t body;      /* body bytes so far, without chunk framing */
    uint64_t remaining; /* of the body, or of the chunk */
    unsigned digits, line;
    size_t head_length;
    char head[RESPONSE_HEAD_LIMIT];
    size_t event_offset; /* of a watch: where we are in the current line */
    char event_clock[EVENT_CLOCK_DIGITS];
};

/* Called at the end of every line of a body, with the sender's clock where the line bears one, else 0. */
typedef void response_line_callback(void *user, uint64_t sent_at_ns);

struct response_rules {
    const char *required_name; /* a header name counted in `required`, or NULL */
    response_line_callback *on_line;
    void *user;
};

void response_reset(struct response *response);

/* Takes all of `data`; false where it is no well-formed response or goes beyond its end, with *error set. */
bool response_feed(struct response *response, const struct response_rules *rules, const char *data, size_t length,
                   const char **error);

#endif
