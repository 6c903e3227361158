/* Load on a service over loopback, from one thread that takes microseconds of CPU a request.

   load http|grpc PORT REQUESTS RESULTS CALLERS SECONDS        closed loop: each caller waits for its response
   load http|grpc PORT REQUESTS RESULTS CALLERS SECONDS DUE PATIENCE
                                    open loop: requests go at the instants in DUE

   REQUESTS holds [uint32 size, bytes] of each request as it goes over the wire: for http headers and body, for grpc the
   HTTP/2 frames of one call with 0 for the stream. DUE holds float64 seconds, rising. RESULTS is written as float64
   [requests, 3]: when it was sent or due, how long until its whole response, and how it ended: the HTTP status; of
   grpc 200 for a response with a message, else the number of its status; -1: the connection ended; -2: no response.
   In the open loop time counts from the instant a request was due, so that a slow service cannot hide its delay; a
   request that finds no idle connection opens one, up to CALLERS; one that waits for a connection for PATIENCE seconds
   is not sent (-2). Prints the seconds from first to last, and of CPU. */

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/timerfd.h>
#include <time.h>
#include <unistd.h>

enum { DATA = 0, HEADERS = 1, RST_STREAM = 3, SETTINGS = 4, PING = 6, GOAWAY = 7, WINDOW_UPDATE = 8 };
enum { INITIAL_WINDOW = 4 }; /* among SETTINGS */
enum { REFUSED_STREAM = 7, CANCEL = 8, ENHANCE_YOUR_CALM = 11 };                  /* of HTTP/2 */
enum { CANCELLED = 1, UNKNOWN = 2, RESOURCE_EXHAUSTED = 8, INTERNAL = 13, UNAVAILABLE = 14 }; /* of gRPC */
enum { GRACE_S = 20, EVENTS = 256, FRAME = 9 };

struct bytes { uint8_t *at; size_t size, room; };

struct connection {
    int fd, busy, watched_out;
    double begun;
    size_t next;            /* closed loop: the request to send next */
    struct bytes in, out;
    size_t sent;            /* of out */
    uint32_t stream;        /* HTTP/2: of the call in flight; odd */
    int64_t window, stream_window, stream_room; /* HTTP/2: bytes of DATA taken now, of one call, of a new call */
    size_t message;         /* HTTP/2: bytes of the response so far */
    int failure;            /* gRPC: the status that the call ends with, if no message comes */
    const uint8_t *put, *put_end; /* HTTP/2: what of the request is not on the wire yet, behind the windows */
    int leaving;            /* the service takes no more calls here: GOAWAY, or connection: close */
};

static struct { uint8_t *at; uint32_t size; } *requests;
static size_t request_count;
static double (*results)[3];
static size_t result_count, result_room;
static int poller, grpc;
static struct sockaddr_in service;
static double started;

static void fail(const char *what) { perror(what); exit(1); }

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + t.tv_nsec * 1e-9 - started;
}

static void append(struct bytes *to, const void *from, size_t size) {
    if (to->size + size > to->room) {
        to->room = (to->size + size) * 2;
        if (!(to->at = realloc(to->at, to->room))) fail("realloc");
    }
    memcpy(to->at + to->size, from, size);
    to->size += size;
}

static void record(double begun, double status) {
    if (result_count == result_room) {
        result_room = result_room ? result_room * 2 : 4096;
        if (!(results = realloc(results, result_room * sizeof *results))) fail("realloc");
    }
    results[result_count][0] = begun;
    results[result_count][1] = now() - begun;
    results[result_count++][2] = status;
}

static void watch(struct connection *c, int out) {
    struct epoll_event event = {.events = EPOLLIN | (out ? EPOLLOUT : 0), .data.ptr = c};
    if (c->watched_out != out && epoll_ctl(poller, EPOLL_CTL_MOD, c->fd, &event)) fail("epoll_ctl");
    c->watched_out = out;
}

static int flush(struct connection *c) {
    while (c->sent < c->out.size) {
        ssize_t n = send(c->fd, c->out.at + c->sent, c->out.size - c->sent, MSG_NOSIGNAL);
        if (n < 0 && errno == EAGAIN) { watch(c, 1); return 1; }
        if (n < 0) return 0;
        c->sent += n;
    }
    c->sent = c->out.size = 0;
    watch(c, 0);
    return 1;
}

static void open_connection(struct connection *c) {
    static const uint8_t preface[] =
        "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
        "\0\0\x0c\x04\0\0\0\0\0"                           /* SETTINGS */
        "\0\x01\0\0\0\0"                                   /* no table of headers: each comes by its name */
        "\0\x04\x7f\xff\xff\xff"                           /* responses of any size */
        "\0\0\x04\x08\0\0\0\0\0" "\x7f\xfe\xff\xff";      /* WINDOW_UPDATE of the connection */
    int one = 1;
    size_t next = c->next;
    free(c->in.at), free(c->out.at);
    memset(c, 0, sizeof *c);
    c->next = next;
    if ((c->fd = socket(AF_INET, SOCK_STREAM, 0)) < 0) fail("socket");
    if (connect(c->fd, (struct sockaddr *)&service, sizeof service)) fail("connect");
    setsockopt(c->fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    fcntl(c->fd, F_SETFL, O_NONBLOCK);
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = c};
    if (epoll_ctl(poller, EPOLL_CTL_ADD, c->fd, &event)) fail("epoll_ctl");
    if (grpc) {
        append(&c->out, preface, sizeof preface - 1);
        c->stream = (uint32_t)-1;
        c->window = c->stream_room = 65535;
        flush(c);
    }
}

static uint32_t big(const uint8_t *at, int size) {
    uint32_t value = 0;
    while (size--) value = value << 8 | *at++;
    return value;
}

/* Puts the frames of the request on the wire, as far as the service's windows allow. */
static void put_frames(struct connection *c) {
    uint32_t stream = htonl(c->stream);
    while (c->put < c->put_end) {
        uint32_t size = big(c->put, 3);
        if (c->put[3] == DATA) {
            if (size > c->window || size > c->stream_window) break;
            c->window -= size;
            c->stream_window -= size;
        }
        append(&c->out, c->put, FRAME + size);
        memcpy(c->out.at + c->out.size - size - 4, &stream, 4);
        c->put += FRAME + size;
    }
    flush(c);
}

static void send_request(struct connection *c, size_t number, double begun) {
    if (c->leaving) {
        close(c->fd);
        open_connection(c);
    }
    c->busy = 1;
    c->begun = begun;
    c->stream += 2; /* the first of a connection: -1 + 2 */
    c->message = 0;
    c->failure = UNKNOWN;
    number %= request_count;
    if (!grpc) {
        append(&c->out, requests[number].at, requests[number].size);
        flush(c);
        return;
    }
    c->stream_window = c->stream_room;
    c->put = requests[number].at;
    c->put_end = c->put + requests[number].size;
    put_frames(c);
}

/* Returns whether the whole response is there; sets its status. */
static int http_response(struct connection *c, double *status) {
    uint8_t *at = c->in.at, *end = c->in.size ? memmem(at, c->in.size, "\r\n\r\n", 4) : NULL;
    if (!end) return 0;
    size_t head = end - at + 4, length = 0;
    int chunked = 0;
    for (uint8_t *line = memchr(at, '\n', head); line && line + 1 < end; line = memchr(line, '\n', at + head - line)) {
        line++;
        if (!strncasecmp((char *)line, "content-length:", 15)) length = strtoul((char *)line + 15, NULL, 10);
        if (!strncasecmp((char *)line, "transfer-encoding: chunked", 26)) chunked = 1;
        if (!strncasecmp((char *)line, "connection: close", 17)) c->leaving = 1;
    }
    *status = strtod((char *)at + 9, NULL);
    if (!chunked) return c->in.size >= head + length;
    return c->in.size >= head + 5 && !memcmp(at + c->in.size - 5, "0\r\n\r\n", 5);
}

static void reply(struct connection *c, int type, const uint8_t *payload, size_t size) {
    uint8_t head[FRAME] = {0, 0, size, type, 1};
    append(&c->out, head, FRAME);
    append(&c->out, payload, size);
    flush(c);
}

static void take_settings(struct connection *c, const uint8_t *at, size_t size) {
    for (size_t i = 0; i + 6 <= size; i += 6)
        if (big(at + i, 2) == INITIAL_WINDOW) {
            c->stream_window += big(at + i + 2, 4) - c->stream_room;
            c->stream_room = big(at + i + 2, 4);
        }
    reply(c, SETTINGS, NULL, 0);
}

/* Returns the status in a block of headers, or what was known before. */
static int status_in(const uint8_t *at, size_t size, int before) {
    static const char name[] = "\x0bgrpc-status";
    const uint8_t *end = at + size, *found = memmem(at, size, name, sizeof name - 1);
    if (!found || found + sizeof name >= end) return before;
    const uint8_t *digit = found + sizeof name; /* behind the length of the value */
    int status = 0;
    for (uint8_t length = digit[-1]; length && digit < end; length--) status = status * 10 + *digit++ - '0';
    return status;
}

/* Returns the status that gRPC gives a call whose stream is reset. */
static int status_of_reset(uint32_t error) {
    switch (error) {
    case CANCEL: return CANCELLED;
    case REFUSED_STREAM: return UNAVAILABLE;
    case ENHANCE_YOUR_CALM: return RESOURCE_EXHAUSTED;
    default: return INTERNAL;
    }
}

/* Takes the whole frames of the buffer; returns whether the call in flight ended, and sets its status. */
static int grpc_frames(struct connection *c, double *status) {
    size_t used = 0;
    int ended = 0;
    while (c->in.size - used >= FRAME) {
        uint8_t *at = c->in.at + used, type = at[3], flags = at[4];
        size_t size = big(at, 3);
        if (c->in.size - used < FRAME + size) break;
        int own = c->busy && big(at + 5, 4) == c->stream;
        used += FRAME + size;
        if (type == DATA && own) c->message += size;
        if ((type == DATA || type == HEADERS) && own && flags & 1) ended = 1;
        if (type == HEADERS && own) c->failure = status_in(at + FRAME, size, c->failure);
        if (type == RST_STREAM && own && !ended) {
            c->message = 0;
            c->failure = status_of_reset(big(at + FRAME, 4));
            ended = 1;
        }
        if (type == SETTINGS && !(flags & 1)) take_settings(c, at + FRAME, size);
        if (type == PING && !(flags & 1)) reply(c, PING, at + FRAME, 8);
        if (type == GOAWAY) c->leaving = 1;
        if (type == WINDOW_UPDATE && own) c->stream_window += big(at + FRAME, 4);
        if (type == WINDOW_UPDATE && !big(at + 5, 4)) c->window += big(at + FRAME, 4);
    }
    memmove(c->in.at, c->in.at + used, c->in.size - used);
    c->in.size -= used;
    put_frames(c);
    *status = c->message >= 5 ? 200 : c->failure;
    return ended;
}

/* Reads what came; returns 1 when the connection's call ended (recorded), and opens it anew if it was lost. */
static int receive(struct connection *c) {
    static uint8_t buffer[1 << 16];
    double status;
    ssize_t n = recv(c->fd, buffer, sizeof buffer, 0);
    if (n < 0 && errno == EAGAIN) return 0;
    if (n <= 0) {
        int was = c->busy;
        if (was) record(c->begun, -1);
        close(c->fd);
        open_connection(c);
        return was;
    }
    append(&c->in, buffer, n);
    if (grpc) {
        if (!grpc_frames(c, &status)) return 0;
    } else {
        if (!http_response(c, &status)) return 0;
        c->in.size = 0;
    }
    if (!c->busy) return 0;
    c->busy = 0;
    record(c->begun, status);
    return 1;
}

static void *whole_file(const char *path, size_t *size) {
    FILE *file = fopen(path, "rb");
    if (!file) fail(path);
    fseek(file, 0, SEEK_END);
    *size = ftell(file);
    rewind(file);
    void *at = malloc(*size + 1);
    if (fread(at, 1, *size, file) != *size) fail(path);
    fclose(file);
    return at;
}

static void read_requests(const char *path) {
    size_t size, at = 0;
    uint8_t *bytes = whole_file(path, &size);
    while (at < size) {
        requests = realloc(requests, (request_count + 1) * sizeof *requests);
        memcpy(&requests[request_count].size, bytes + at, 4);
        requests[request_count].at = bytes + at + 4;
        at += 4 + requests[request_count++].size;
    }
}

static void give_up(struct connection *connections, size_t count) {
    for (size_t i = 0; i < count; i++)
        if (connections[i].busy) record(connections[i].begun, -2);
}

static void closed_loop(struct connection *connections, size_t callers, double seconds) {
    struct epoll_event events[EVENTS];
    size_t flying = callers;
    for (size_t i = 0; i < callers; i++) {
        connections[i].next = i + callers;
        send_request(&connections[i], i, now());
    }
    while (flying && now() < seconds + GRACE_S) {
        int n = epoll_wait(poller, events, EVENTS, 100);
        for (int i = 0; i < n; i++) {
            struct connection *c = events[i].data.ptr;
            if (events[i].events & EPOLLOUT) flush(c);
            if (!(events[i].events & ~EPOLLOUT) || !receive(c)) continue;
            if (now() >= seconds) { flying--; continue; }
            size_t next = c->next;
            c->next += callers;
            send_request(c, next, now());
        }
    }
    give_up(connections, callers);
}

static void open_loop(struct connection *connections, size_t room, size_t opened, const double *due, size_t count,
                      double patience) {
    struct epoll_event events[EVENTS];
    struct connection **idle = malloc(room * sizeof *idle);
    size_t idle_first = 0, idle_count = 0, sent = 0, ended = 0;
    size_t armed = count;
    int were_busy = 0;
    int timer = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK);
    struct epoll_event ticking = {.events = EPOLLIN | EPOLLET, .data.ptr = NULL}; /* by edge: it need not be read */
    if (timer < 0 || epoll_ctl(poller, EPOLL_CTL_ADD, timer, &ticking)) fail("timerfd");
    while (idle_count < opened) { idle[idle_count] = &connections[idle_count]; idle_count++; }
    while (ended < count && now() < due[count - 1] + GRACE_S) {
        /* What waited too long while every connection was busy is not sent, although one may be idle by now. */
        while (sent < count && were_busy && due[sent] + patience < now()) {
            record(due[sent++], -2);
            ended++;
        }
        while (sent < count && due[sent] <= now() && (idle_count || opened < room)) {
            if (!idle_count) {
                open_connection(&connections[opened]);
                idle[(idle_first + idle_count++) % room] = &connections[opened++];
            }
            /* The one that was idle for longest: one that was just rejected would be rejected again. */
            send_request(idle[idle_first], sent, due[sent]);
            idle_first = (idle_first + 1) % room, idle_count--;
            sent++;
        }
        /* Set once a request, not once a response; one that is due and finds no connection waits for a response. */
        if (sent < count && armed != sent && (idle_count || opened < room)) {
            double at = due[sent] + started + 1e-7; /* not before it by rounding, either: it goes off once */
            struct itimerspec when = {.it_value = {(time_t)at, (long)((at - (time_t)at) * 1e9)}};
            if (timerfd_settime(timer, TFD_TIMER_ABSTIME, &when, NULL)) fail("timerfd_settime");
            armed = sent;
        }
        were_busy = !idle_count && opened == room;
        int n = epoll_wait(poller, events, EVENTS, 100);
        for (int i = 0; i < n; i++) {
            struct connection *c = events[i].data.ptr;
            if (!c) continue;
            if (events[i].events & EPOLLOUT) flush(c);
            if (!(events[i].events & ~EPOLLOUT) || !receive(c)) continue;
            idle[(idle_first + idle_count++) % room] = c;
            ended++;
        }
    }
    give_up(connections, opened);
    while (sent < count) record(due[sent++], -2);
}

int main(int argc, char **argv) {
    if (argc != 7 && argc != 9) return fprintf(stderr, "load: see the top of load.c\n"), 2;
    size_t callers = strtoul(argv[5], NULL, 10), due_size = 0, opened = callers;
    double seconds = strtod(argv[6], NULL), *due = argc > 7 ? whole_file(argv[7], &due_size) : NULL;
    grpc = !strcmp(argv[1], "grpc");
    service = (struct sockaddr_in){.sin_family = AF_INET, .sin_port = htons(atoi(argv[2]))};
    service.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    read_requests(argv[3]);
    if ((poller = epoll_create1(0)) < 0) fail("epoll_create1");
    struct connection *connections = calloc(callers, sizeof *connections);
    if (due && opened > 16) opened = 16;
    for (size_t i = 0; i < opened; i++) open_connection(&connections[i]);
    started = now();
    if (due) open_loop(connections, callers, opened, due, due_size / sizeof *due, strtod(argv[8], NULL));
    else closed_loop(connections, callers, seconds);
    double elapsed = now();
    struct rusage used;
    getrusage(RUSAGE_SELF, &used);
    FILE *file = fopen(argv[4], "wb");
    if (!file || fwrite(results, sizeof *results, result_count, file) != result_count || fclose(file)) fail(argv[4]);
    printf("%.6f %.6f\n", elapsed, used.ru_utime.tv_sec + used.ru_stime.tv_sec
           + (used.ru_utime.tv_usec + used.ru_stime.tv_usec) * 1e-6);
    return 0;
}
