/* Adapter between the lab and lwIP, as its package builds it.
 *
 * The lab starts it with settings as key=value arguments, writes commands to its standard input
 * and reads answers from its standard output, a line each; the lab's room for such programs says
 * what they are. It ends when its standard input does.
 *
 * One thread does all the work: it takes frames in under lwIP's core lock, and lwIP calls back from
 * there. lwIP's own thread is left with the timers. lwIP can be had once in a process only, so the
 * two ends of a pair are two processes. */
#define _GNU_SOURCE
#include "adapter.h"

#include <errno.h>
#include <poll.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include <lwip/init.h>

/* The protocol between lab and adapter. */
#define PROTOCOL 1
/* Frames taken in before commands are looked at. */
#define BURST 64
/* Longest line of a command, bytes. */
#define LINE 256

struct settings settings;

void answer(const char *format, ...)
{
	va_list list;
	va_start(list, format);
	vprintf(format, list);
	va_end(list);
	putchar('\n');
	fflush(stdout);
}

void fail(const char *what, const char *why)
{
	answer("error %s: %s", what, why);
	_exit(1);
}

static const char *text_of(int argc, char **argv, const char *key)
{
	size_t n = strlen(key);
	for (int i = 1; i < argc; i++)
		if (!strncmp(argv[i], key, n) && argv[i][n] == '=')
			return argv[i] + n + 1;
	fail(key, "is not given");
	return NULL;
}

static size_t number_of(int argc, char **argv, const char *key)
{
	const char *text = text_of(argc, argv, key);
	char *end;
	errno = 0;
	unsigned long long n = strtoull(text, &end, 10);
	if (errno || !*text || *end || *text == '-')
		fail(key, "is no number");
	return (size_t)n;
}

static void read_settings(int argc, char **argv)
{
	settings.pair = !strcmp(text_of(argc, argv, "mode"), "pair");
	settings.interface = text_of(argc, argv, "interface");
	settings.near = text_of(argc, argv, "near");
	settings.far = text_of(argc, argv, "far");
	settings.mtu = number_of(argc, argv, "mtu");
	settings.connections = number_of(argc, argv, "connections");
	settings.send = number_of(argc, argv, "send") != 0;
	settings.receive = number_of(argc, argv, "receive") != 0;
	settings.write = number_of(argc, argv, "write");
	settings.size = number_of(argc, argv, "size");
	settings.nagle = strcmp(text_of(argc, argv, "coalescing"), "nodelay") != 0;
	if (settings.size == 0 || settings.size % 8 || settings.write == 0)
		fail("size, write", "out of range");
}

/* What has been counted so far, of both processes. */
struct counters {
	uint64_t at, cpu, voluntary, involuntary;
	uint64_t *sent, *received;
};

static uint64_t clock_ns(clockid_t clock)
{
	struct timespec t;
	if (clock_gettime(clock, &t))
		fail("a clock", strerror(errno));
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* The near end's bytes, and those of the ends that receive: the far ones of a pair, the near ones,
 * or both. */
static struct counters counted(pid_t other)
{
	size_t n = settings.connections;
	struct counters c = {0};
	struct rusage usage;
	c.sent = calloc(n, sizeof *c.sent);
	c.received = calloc(2 * n, sizeof *c.received);
	if (!c.sent || !c.received)
		fail("counters", "no memory");
	for (size_t i = 0; i < n; i++) {
		c.sent[i] = atomic_load(&shared->near[i].sent);
		if (settings.send && settings.pair)
			c.received[i] = atomic_load(&shared->far[i].received);
		if (settings.receive)
			c.received[n + i] = atomic_load(&shared->near[i].received);
	}
	getrusage(RUSAGE_SELF, &usage);
	c.voluntary = (uint64_t)usage.ru_nvcsw;
	c.involuntary = (uint64_t)usage.ru_nivcsw;
	c.cpu = clock_ns(CLOCK_PROCESS_CPUTIME_ID);
	if (other > 0) {
		clockid_t theirs;
		if (clock_getcpuclockid(other, &theirs))
			fail("the far end", "has ended");
		c.cpu += clock_ns(theirs);
	}
	c.at = clock_ns(CLOCK_MONOTONIC);
	return c;
}

static void tell(const char *key, const uint64_t *after, const uint64_t *before, size_t n)
{
	fputs(key, stdout);
	for (size_t i = 0; i < n; i++)
		printf(" %llu", (unsigned long long)(after[i] - before[i]));
	putchar('\n');
}

static void report(const struct counters *before, const struct counters *after)
{
	size_t n = settings.connections;
	answer("elapsed %llu", (unsigned long long)(after->at - before->at));
	answer("cpu %llu", (unsigned long long)(after->cpu - before->cpu));
	answer("switches %llu %llu", (unsigned long long)(after->voluntary - before->voluntary),
	       (unsigned long long)(after->involuntary - before->involuntary));
	answer("verified %llu", (unsigned long long)atomic_load(&shared->verified));
	tell("sent", after->sent, before->sent, n);
	bool of_far = settings.send && settings.pair;
	size_t from = of_far ? 0 : n, to = settings.receive ? 2 * n : n;
	tell("received", after->received + from, before->received + from, to > from ? to - from : 0);
	answer("end");
}

/* A command of the lab; false for the last one. */
static bool command(char *line, pid_t other)
{
	static struct counters before;
	char host[64];
	unsigned port, count;
	if (sscanf(line, "connect %63[0-9.]:%u %u", host, &port, &count) == 3) {
		connect_to(host, (uint16_t)port, count);
	} else if (!strcmp(line, "warm")) {
		atomic_store(&shared->warm, true);
		wake_other();
	} else if (!strcmp(line, "measure")) {
		before = counted(other);
		answer("counting");
	} else if (!strcmp(line, "stop")) {
		struct counters after = counted(other);
		report(&before, &after);
		return false;
	} else {
		fail("unknown command", line);
	}
	return true;
}

/* Reads commands as far as there are any; false after the last one. */
static bool commands(pid_t other)
{
	static char text[4096];
	static size_t have;
	struct pollfd in = {.fd = 0, .events = POLLIN};
	if (poll(&in, 1, 0) <= 0)
		return true;
	ssize_t n = read(0, text + have, sizeof text - have);
	if (n <= 0)
		_exit(1);
	have += (size_t)n;
	for (char *end; (end = memchr(text, '\n', have));) {
		*end = 0;
		bool more = command(text, other);
		have -= (size_t)(end + 1 - text);
		memmove(text, end + 1, have);
		if (!more)
			return false;
	}
	if (have == sizeof text)
		fail("a command", "is too long");
	return true;
}

int main(int argc, char **argv)
{
	read_settings(argc, argv);
	answer("hello %d lwip %s", PROTOCOL, LWIP_VERSION_STRING);
	share();
	pid_t other = 0;
	bool far = false;
	if (settings.pair) {
		other = fork_far();
		far = other == 0;
	}
	start_stack(far);
	if (!far) {
		await_far();
		answer("interface");
	}
	for (unsigned turns = 0;; turns++) {
		unsigned frames = take_in(BURST);
		work();
		if (frames == 0)
			sleep_until_frame(far ? -1 : 0);
		if (!far && (frames == 0 || turns % 64 == 0) && !commands(other))
			break;
	}
	end_far(other);
	return 0;
}
