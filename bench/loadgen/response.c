#define _GNU_SOURCE
#include "response.h"

#include <string.h>
#include <strings.h>

void response_reset(struct response *response) {
    memset(response, 0, offsetof(struct response, head));
    response->event_offset = 0;
}

static bool named(const char *line, const char *colon, const char *name) {
    size_t length = strlen(name);
    return (size_t)(colon - line) == length && strncasecmp(line, name, length) == 0;
}

/* `head` ends with the empty line; sets the phase that follows. */
static const char *parse_head(struct response *response, const struct response_rules *rules, const char *head,
                              const char *end) {
    bool chunked = false, has_length = false;
    if (end - head < 14 || memcmp(head, "HTTP/1.1 ", 9) != 0) return "not an HTTP/1.1 status line";
    for (int digit = 9; digit < 12; digit++) {
        if (head[digit] < '0' || head[digit] > '9') return "not a status code";
        response->status = response->status * 10 + (head[digit] - '0');
    }
    const char *line = (const char *)memmem(head, (size_t)(end - head), "\r\n", 2) + 2;
    while (line < end - 2) {
        const char *stop = (const char *)memmem(line, (size_t)(end - line), "\r\n", 2);
        const char *colon = (const char *)memchr(line, ':', (size_t)(stop - line));
        if (colon == NULL) return "a header line without a colon";
        if (rules->required_name != NULL && named(line, colon, rules->required_name)) response->required++;
        if (named(line, colon, "transfer-encoding")) {
            chunked = stop - colon >= 7 && strncasecmp(stop - 7, "chunked", 7) == 0;
            if (!chunked) return "a transfer coding other than chunked";
        } else if (named(line, colon, "content-length")) {
            if (has_length) return "two Content-Length lines";
            has_length = true;
            for (const char *at = colon + 1; at < stop; at++) {
                if (*at == ' ' && response->remaining == 0) continue;
                if (*at < '0' || *at > '9') return "a malformed Content-Length";
                response->remaining = response->remaining * 10 + (uint64_t)(*at - '0');
            }
        }
        line = stop + 2;
    }
    if (chunked && has_length) return "both Content-Length and chunked";
    if (!chunked && !has_length) return "neither Content-Length nor chunked";
    response->phase = chunked ? IN_CHUNK_SIZE : response->remaining ? IN_LENGTH : COMPLETE;
    return NULL;
}

static void read_lines(struct response *response, const struct response_rules *rules, const char *data, size_t length) {
    while (length > 0) {
        const char *newline = (const char *)memchr(data, '\n', length);
        size_t part = newline != NULL ? (size_t)(newline - data) + 1 : length;
        size_t from = response->event_offset, to = from + part;
        size_t low = from > EVENT_PREFIX_LENGTH ? from : EVENT_PREFIX_LENGTH;
        size_t high = EVENT_PREFIX_LENGTH + EVENT_CLOCK_DIGITS < to ? EVENT_PREFIX_LENGTH + EVENT_CLOCK_DIGITS : to;
        if (low < high) memcpy(response->event_clock + (low - EVENT_PREFIX_LENGTH), data + (low - from), high - low);
        response->event_offset = to;
        if (newline != NULL) {
            uint64_t sent_at = 0;
            for (int digit = 0; digit < EVENT_CLOCK_DIGITS && to > EVENT_PREFIX_LENGTH + EVENT_CLOCK_DIGITS; digit++) {
                char value = response->event_clock[digit];
                if (value < '0' || value > '9') {
                    sent_at = 0;
                    break;
                }
                sent_at = sent_at * 10 + (uint64_t)(value - '0');
            }
            rules->on_line(rules->user, sent_at);
            response->event_offset = 0;
        }
        data += part;
        length -= part;
    }
}

static int hexadecimal(char digit) {
    if (digit >= '0' && digit <= '9') return digit - '0';
    digit |= 0x20;
    return digit >= 'a' && digit <= 'f' ? digit - 'a' + 10 : -1;
}

/* Takes up to the end of the head; 0 on an error. */
static size_t take_head(struct response *response, const struct response_rules *rules, const char *data, size_t length,
                        const char **error) {
    const char *head = data;
    size_t had = response->head_length, total = length, taken;
    if (had > 0) {
        total = had + length < RESPONSE_HEAD_LIMIT ? had + length : RESPONSE_HEAD_LIMIT;
        memcpy(response->head + had, data, total - had);
        head = response->head;
    }
    size_t from = had > 3 ? had - 3 : 0;
    const char *end = (const char *)memmem(head + from, total - from, "\r\n\r\n", 4);
    if (end != NULL) {
        taken = (size_t)(end + 4 - head) - had;
        response->head_length = 0;
        *error = parse_head(response, rules, head, end + 4);
        return *error == NULL ? taken : 0;
    }
    if (total >= RESPONSE_HEAD_LIMIT) {
        *error = "a response head beyond 8 KiB";
        return 0;
    }
    if (had == 0) memcpy(response->head, data, length);
    response->head_length = total;
    return length;
}

bool response_feed(struct response *response, const struct response_rules *rules, const char *data, size_t length,
                   const char **error) {
    *error = NULL;
    while (length > 0) {
        size_t taken = 1;
        switch (response->phase) {
        case IN_HEAD:
            taken = take_head(response, rules, data, length, error);
            if (*error != NULL) return false;
            break;
        case IN_LENGTH:
        case IN_CHUNK:
            taken = length < response->remaining ? length : (size_t)response->remaining;
            if (rules->on_line != NULL) read_lines(response, rules, data, taken);
            response->body += taken;
            response->remaining -= taken;
            if (response->remaining == 0) response->phase = response->phase == IN_CHUNK ? AFTER_CHUNK : COMPLETE;
            break;
        case IN_CHUNK_SIZE:
            if (*data == '\n') {
                if (response->digits == 0) *error = "an empty chunk size";
                response->phase = response->remaining ? IN_CHUNK : IN_TRAILER;
                response->digits = response->line = 0;
            } else if (*data != '\r') {
                int value = hexadecimal(*data);
                if (value < 0 || ++response->digits > 8) *error = "a malformed chunk size";
                response->remaining = response->remaining * 16 + (uint64_t)(value & 15);
            }
            break;
        case AFTER_CHUNK:
            if (*data == '\n') response->phase = IN_CHUNK_SIZE;
            else if (*data != '\r') *error = "no line end after a chunk";
            break;
        case IN_TRAILER: /* lines up to an empty one */
            if (*data == '\n') {
                if (response->line == 0) response->phase = COMPLETE;
                response->line = 0;
            } else if (*data != '\r') {
                response->line++;
            }
            break;
        case COMPLETE: *error = "bytes after the end of the response"; break;
        }
        if (*error != NULL) return false;
        data += taken;
        length -= taken;
    }
    return true;
}
