/* What the two halves of the adapter share: the program (main.c) and the stack (stack.c). */
#ifndef ADAPTER_H
#define ADAPTER_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/types.h>

struct settings {
	bool pair;
	const char *interface, *near, *far;
	size_t mtu, connections, write, size;
	bool send, receive, nagle;
};

/* A connection's end. */
struct moved {
	atomic_uint_fast64_t sent, received;
};

struct ring;

/* Memory that both processes of a pair have. */
struct shared {
	atomic_bool listening, warm;
	atomic_uint_fast64_t verified;
	struct moved *near, *far;
	struct ring *rings[2];
};

extern struct settings settings;
extern struct shared *shared;

void answer(const char *format, ...) __attribute__((format(printf, 1, 2)));
void fail(const char *what, const char *why) __attribute__((noreturn));

/* Makes the shared memory. */
void share(void);
/* Starts the process of the far end; 0 in that one. It ends when this one does. */
pid_t fork_far(void);
/* Waits until the far end listens. */
void await_far(void);
/* Ends it. */
void end_far(pid_t far);
/* Lets the other process look around. */
void wake_other(void);

/* Starts lwIP with one interface; the far end of a pair listens. */
void start_stack(bool far);
/* Gives lwIP up to `most` frames; how many there were. */
unsigned take_in(unsigned most);
/* Sends what there is room for, once traffic may flow. */
void work(void);
/* Waits a little for a frame, or for `input` to be readable if it is a descriptor. */
void sleep_until_frame(int input);
/* Opens connections; lwIP says when they are open. */
void connect_to(const char *host, uint16_t port, unsigned count);

#endif
