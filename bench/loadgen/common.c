#define _GNU_SOURCE
#include "common.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <openssl/err.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

uint64_t now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * NANOSECONDS + (uint64_t)now.tv_nsec;
}

struct timespec to_timespec(uint64_t ns) {
    return (struct timespec){.tv_sec = (time_t)(ns / NANOSECONDS), .tv_nsec = (long)(ns % NANOSECONDS)};
}

void die(const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    vfprintf(stderr, format, arguments);
    va_end(arguments);
    fputc('\n', stderr);
    ERR_print_errors_fp(stderr);
    exit(1);
}

double parse_number(const char *option, const char *text, double low, double high) {
    char *end = NULL;
    double value = strtod(text, &end);
    if (end == text || *end != '\0' || !(value >= low && value <= high))
        die("--%s: %s is not a number from %g to %g", option, text, low, high);
    return value;
}

struct sockaddr_in parse_address(const char *text) {
    struct sockaddr_in address = {.sin_family = AF_INET};
    char host[64];
    const char *colon = strrchr(text, ':');
    if (colon == NULL || (size_t)(colon - text) >= sizeof host) die("%s is not IPV4:PORT", text);
    memcpy(host, text, (size_t)(colon - text));
    host[colon - text] = '\0';
    if (inet_pton(AF_INET, host, &address.sin_addr) != 1) die("%s is not an IPv4 address", host);
    address.sin_port = htons((uint16_t)parse_number("port", colon + 1, 1, 65535));
    return address;
}

void raise_open_files(uint64_t needed) {
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) != 0) die("getrlimit: %s", strerror(errno));
    if (limit.rlim_max < needed)
        die("%llu open files are needed, the hard limit (ulimit -Hn) is %llu", (unsigned long long)needed,
            (unsigned long long)limit.rlim_max);
    limit.rlim_cur = limit.rlim_max;
    if (setrlimit(RLIMIT_NOFILE, &limit) != 0) die("setrlimit: %s", strerror(errno));
}

void set_nodelay(int fd) {
    int on = 1;
    if (setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on) != 0) die("TCP_NODELAY: %s", strerror(errno));
}

SSL_CTX *tls_context(const SSL_METHOD *method, const char *cert_file, const char *key_file, const char *ca_file) {
    SSL_CTX *context = SSL_CTX_new(method);
    if (context == NULL) die("SSL_CTX_new failed");
    SSL_CTX_set_min_proto_version(context, TLS1_3_VERSION);
    if (SSL_CTX_set_ciphersuites(context, "TLS_AES_128_GCM_SHA256") != 1) die("no TLS_AES_128_GCM_SHA256");
    if (SSL_CTX_set1_groups_list(context, "X25519") != 1) die("no X25519");
    if (cert_file != NULL) {
        if (SSL_CTX_use_certificate_chain_file(context, cert_file) != 1) die("%s: not a certificate", cert_file);
        if (SSL_CTX_use_PrivateKey_file(context, key_file, SSL_FILETYPE_PEM) != 1) die("%s: not its key", key_file);
    }
    if (ca_file != NULL && SSL_CTX_load_verify_locations(context, ca_file, NULL) != 1) die("%s: not a CA", ca_file);
    /* One read(2) for a whole record instead of two, and no idle 16 KiB buffers on thousands of connections. */
    SSL_CTX_set_read_ahead(context, 1);
    SSL_CTX_set_mode(context, SSL_MODE_RELEASE_BUFFERS | SSL_MODE_ENABLE_PARTIAL_WRITE |
                                  SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
    return context;
}
