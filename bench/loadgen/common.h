/* What the load generator and the watch upstream share: time, errors, TLS contexts, sockets. */
#ifndef BENCH_COMMON_H
#define BENCH_COMMON_H

#include <netinet/in.h>
#include <openssl/ssl.h>
#include <stdbool.h>
#include <stdint.h>
#include <time.h>

#define NANOSECONDS UINT64_C(1000000000)

/* Every event of the watch upstream is one line of JSON that begins with EVENT_PREFIX followed by the
 * sender's CLOCK_MONOTONIC in nanoseconds as EVENT_CLOCK_DIGITS decimal digits. */
#define EVENT_PREFIX "{\"type\":\"MODIFIED\",\"sentAt\":\""
#define EVENT_PREFIX_LENGTH (sizeof(EVENT_PREFIX) - 1)
#define EVENT_CLOCK_DIGITS 20

uint64_t now_ns(void);
struct timespec to_timespec(uint64_t ns);

/* Prints the message, then OpenSSL's queue of errors, and exits with status 1. */
_Noreturn void die(const char *format, ...) __attribute__((format(printf, 1, 2)));

double parse_number(const char *option, const char *text, double low, double high);
struct sockaddr_in parse_address(const char *text);

/* Raises the soft limit of open files to the hard one; dies where `needed` is beyond it. */
void raise_open_files(uint64_t needed);

void set_nodelay(int fd);

/* TLS 1.3 only, TLS_AES_128_GCM_SHA256, X25519: the same on every leg, whatever a peer's library
 * would pick by itself. */
SSL_CTX *tls_context(const SSL_METHOD *method, const char *cert_file, const char *key_file, const char *ca_file);

#endif
