/* lwIP, its interface, and what the application does in its callbacks. */
#define _GNU_SOURCE
#include "adapter.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/if_tun.h>
#include <net/if.h>
#include <poll.h>
#include <semaphore.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

#include <lwip/etharp.h>
#include <lwip/netif.h>
#include <lwip/tcp.h>
#include <lwip/tcpip.h>
#include <netif/ethernet.h>

/* Port that the far end of a pair listens on. */
#define PORT 5001
/* Connections that may be opening at a time. */
#define OPENING 64
/* One reception in this many, the first one included, is compared with what it must be. */
#define SAMPLE 61
/* Frames of a connection's whole window, and the most that a pair's link holds in each direction, a
 * power of two: with room for all windows no connection is shut out by the others. */
#define WINDOW 45
#define MOST_SLOTS 32768
/* Longest Ethernet frame at the largest MTU that the lab asks for, bytes. */
#define FRAME 1536
/* Frames after which the other end is told of them without waiting for more. */
#define BATCH 32
/* Longest sleep, ms. */
#define NAP 10
/* How long a broken connection is no failure: when the kernel's end was stopped first, the lab's
 * word to stop is under way. ns. */
#define GRACE 300000000u

/* One direction of a pair's link: one process writes, the other one reads. */
struct ring {
	_Alignas(64) atomic_uint written;
	_Alignas(64) atomic_uint taken;
	/* The reader sleeps. */
	_Alignas(64) atomic_bool asleep;
	int wake;
	unsigned size;
	struct {
		uint32_t length;
		uint8_t bytes[FRAME];
	} slots[];
};

struct end {
	struct tcp_pcb *pcb;
	struct moved *moved;
	bool source, sink;
	unsigned receptions;
};

struct shared *shared;

static struct netif interface;
static int tap = -1;
static struct ring *in, *out;
static unsigned untold;
/* A frame found no room on the link. */
static bool refused;
static struct end *ends;
static size_t opened, opening, wanted;
static ip_addr_t peer;
static uint16_t peer_port;
static bool is_far, started;
static uint8_t *file;
static uint64_t broken_since;
static err_t broken_by;

static uint64_t now_ns(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* ---- the two processes of a pair ---- */

static void *common(size_t size)
{
	void *at = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (at == MAP_FAILED)
		fail("shared memory", strerror(errno));
	return at;
}

void share(void)
{
	shared = common(sizeof *shared);
	size_t size = (settings.connections + 1) * sizeof(struct moved);
	shared->near = common(size);
	shared->far = common(size);
	unsigned slots = 128;
	while (slots < MOST_SLOTS && slots < settings.connections * WINDOW)
		slots *= 2;
	for (int i = 0; settings.pair && i < 2; i++) {
		shared->rings[i] = common(sizeof(struct ring) + slots * sizeof shared->rings[i]->slots[0]);
		shared->rings[i]->size = slots;
		shared->rings[i]->wake = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
		if (shared->rings[i]->wake < 0)
			fail("an eventfd", strerror(errno));
	}
}

pid_t fork_far(void)
{
	fflush(stdout);
	pid_t parent = getpid();
	pid_t far = fork();
	if (far < 0)
		fail("a second process", strerror(errno));
	if (far == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		if (getppid() != parent)
			_exit(1);
	}
	return far;
}

void await_far(void)
{
	for (int i = 0; settings.pair && !atomic_load(&shared->listening); i++) {
		if (i == 10000)
			fail("the far end", "does not listen");
		usleep(1000);
	}
}

void end_far(pid_t far)
{
	if (far > 0)
		kill(far, SIGKILL);
}

static void ring_bell(struct ring *ring)
{
	uint64_t one = 1;
	/* It fails only when the bell has been rung very often. */
	if (write(ring->wake, &one, sizeof one) < 0)
		return;
}

void wake_other(void)
{
	if (out)
		ring_bell(out);
}

/* Tells the reader of the frames that it was not told of. */
static void tell(void)
{
	if (!out || !untold)
		return;
	untold = 0;
	/* The reader says that it sleeps and then looks once more: one of the two is seen. */
	atomic_thread_fence(memory_order_seq_cst);
	if (atomic_exchange(&out->asleep, false))
		ring_bell(out);
}

/* ---- frames ---- */

static err_t send_to_ring(struct pbuf *p)
{
	unsigned at = atomic_load_explicit(&out->written, memory_order_relaxed);
	unsigned taken = atomic_load_explicit(&out->taken, memory_order_acquire);
	if (at - taken == out->size || p->tot_len > FRAME) {
		refused = true;
		return ERR_MEM;
	}
	pbuf_copy_partial(p, out->slots[at % out->size].bytes, p->tot_len, 0);
	out->slots[at % out->size].length = p->tot_len;
	atomic_store_explicit(&out->written, at + 1, memory_order_release);
	if (++untold >= BATCH)
		tell();
	return ERR_OK;
}

static err_t send_frame(struct netif *netif, struct pbuf *p)
{
	(void)netif;
	uint8_t whole[FRAME];
	const void *bytes = p->payload;
	if (out)
		return send_to_ring(p);
	if (p->tot_len > FRAME)
		return ERR_BUF;
	if (p->next) {
		pbuf_copy_partial(p, whole, p->tot_len, 0);
		bytes = whole;
	}
	/* What the kernel has no room for is lost, as on any link. */
	if (write(tap, bytes, p->tot_len) < 0 && errno != EAGAIN && errno != ENOBUFS && errno != EIO)
		return ERR_IF;
	return ERR_OK;
}

/* The next frame, or none. */
static struct pbuf *next_frame(void)
{
	static struct pbuf *spare;
	if (in) {
		unsigned at = atomic_load_explicit(&in->taken, memory_order_relaxed);
		if (at == atomic_load_explicit(&in->written, memory_order_acquire))
			return NULL;
		uint32_t length = in->slots[at % in->size].length;
		struct pbuf *p = pbuf_alloc(PBUF_RAW, (u16_t)length, PBUF_RAM);
		if (p)
			memcpy(p->payload, in->slots[at % in->size].bytes, length);
		atomic_store_explicit(&in->taken, at + 1, memory_order_release);
		return p;
	}
	struct pbuf *p = spare ? spare : pbuf_alloc(PBUF_RAW, FRAME, PBUF_RAM);
	spare = p;
	ssize_t n = p ? read(tap, p->payload, FRAME) : -1;
	if (n <= 0)
		return NULL;
	spare = NULL;
	pbuf_realloc(p, (u16_t)n);
	return p;
}

unsigned take_in(unsigned most)
{
	unsigned frames = 0;
	struct pbuf *p;
	LOCK_TCPIP_CORE();
	while (frames < most && (p = next_frame())) {
		frames++;
		if (ethernet_input(p, &interface) != ERR_OK)
			pbuf_free(p);
	}
	tell();
	UNLOCK_TCPIP_CORE();
	return frames;
}

void sleep_until_frame(int input)
{
	struct pollfd fds[2] = {
		{.fd = in ? in->wake : tap, .events = POLLIN},
		{.fd = input, .events = POLLIN},
	};
	if (in) {
		atomic_store(&in->asleep, true);
		atomic_thread_fence(memory_order_seq_cst);
		if (atomic_load(&in->written) != atomic_load(&in->taken)) {
			atomic_store(&in->asleep, false);
			return;
		}
	}
	poll(fds, input < 0 ? 1 : 2, NAP);
	if (in) {
		uint64_t rung;
		atomic_store(&in->asleep, false);
		/* Nothing to read: it woke by itself. */
		if (read(in->wake, &rung, sizeof rung) < 0)
			return;
	}
}

/* ---- the application ---- */

static void broken(err_t why)
{
	if (!broken_since) {
		broken_since = now_ns();
		broken_by = why;
	}
}

static void push(struct end *end)
{
	struct tcp_pcb *pcb = end->pcb;
	u16_t room;
	while (pcb && (room = (u16_t)LWIP_MIN(tcp_sndbuf(pcb), 0xffff)) > 0) {
		uint64_t sent = atomic_load_explicit(&end->moved->sent, memory_order_relaxed);
		size_t at = sent % settings.size;
		size_t n = LWIP_MIN(LWIP_MIN((size_t)room, settings.write), settings.size - at);
		if (tcp_write(pcb, file + at, (u16_t)n, 0) != ERR_OK)
			break;
		atomic_store_explicit(&end->moved->sent, sent + n, memory_order_relaxed);
	}
	if (pcb)
		tcp_output(pcb);
}

static err_t on_sent(void *arg, struct tcp_pcb *pcb, u16_t n)
{
	struct end *end = arg;
	(void)pcb, (void)n;
	if (started && end->source)
		push(end);
	return ERR_OK;
}

/* Now and then, for what found no memory. */
static err_t on_poll(void *arg, struct tcp_pcb *pcb)
{
	return on_sent(arg, pcb, 0);
}

static void compare(uint64_t offset, const struct pbuf *p)
{
	for (; p; p = p->next) {
		const uint8_t *bytes = p->payload;
		for (size_t done = 0; done < p->len;) {
			size_t at = offset % settings.size;
			size_t n = LWIP_MIN(p->len - done, settings.size - at);
			if (memcmp(bytes + done, file + at, n))
				fail("received bytes", "differ from what was sent");
			done += n;
			offset += n;
			atomic_fetch_add(&shared->verified, n);
		}
	}
}

static err_t on_received(void *arg, struct tcp_pcb *pcb, struct pbuf *p, err_t err)
{
	struct end *end = arg;
	if (!p || err != ERR_OK) {
		broken(ERR_CLSD);
		if (p)
			pbuf_free(p);
		return ERR_OK;
	}
	uint64_t offset = atomic_load_explicit(&end->moved->received, memory_order_relaxed);
	if (end->receptions++ % SAMPLE == 0)
		compare(offset, p);
	atomic_store_explicit(&end->moved->received, offset + p->tot_len, memory_order_relaxed);
	tcp_recved(pcb, p->tot_len);
	pbuf_free(p);
	return ERR_OK;
}

static void on_error(void *arg, err_t err)
{
	struct end *end = arg;
	end->pcb = NULL;
	broken(err);
}

/* Makes a connection one of ours. */
static void adopt(struct end *end, struct tcp_pcb *pcb)
{
	size_t index = (size_t)(end - ends);
	end->pcb = pcb;
	end->moved = (is_far ? shared->far : shared->near) + index;
	end->source = is_far ? settings.receive : settings.send;
	end->sink = is_far ? settings.send : settings.receive;
	tcp_arg(pcb, end);
	tcp_err(pcb, on_error);
	tcp_recv(pcb, on_received);
	tcp_sent(pcb, on_sent);
	tcp_poll(pcb, on_poll, 1);
	if (!settings.nagle)
		tcp_nagle_disable(pcb);
}

static err_t on_accept(void *arg, struct tcp_pcb *pcb, err_t err)
{
	(void)arg;
	if (err != ERR_OK || opened == settings.connections)
		return ERR_ABRT == err ? err : ERR_VAL;
	adopt(&ends[opened++], pcb);
	return ERR_OK;
}

static err_t on_connected(void *arg, struct tcp_pcb *pcb, err_t err)
{
	(void)arg, (void)pcb, (void)err;
	opening--;
	answer("opened");
	return ERR_OK;
}

void connect_to(const char *host, uint16_t port, unsigned count)
{
	if (!ipaddr_aton(host, &peer))
		fail(host, "is no address");
	peer_port = port;
	wanted += count;
	if (wanted > settings.connections)
		fail("connect", "more connections than were announced");
}

static void open_more(void)
{
	for (; opened < wanted && opening < OPENING; opened++, opening++) {
		struct tcp_pcb *pcb = tcp_new();
		if (!pcb)
			fail("a connection", "no memory");
		adopt(&ends[opened], pcb);
		if (tcp_connect(pcb, &peer, peer_port, on_connected) != ERR_OK)
			fail("connecting", "lwIP refuses");
	}
}

void work(void)
{
	if (broken_since && now_ns() - broken_since > GRACE) {
		char number[32];
		snprintf(number, sizeof number, "lwIP's error %d", broken_by);
		fail("a connection ended", number);
	}
	bool start = !started && atomic_load(&shared->warm);
	/* lwIP keeps what was refused and tries again when it hears from the other end, which it may
	 * never do for a connection that got nothing through. */
	bool again = refused && atomic_load(&out->written) - atomic_load(&out->taken) < out->size / 2;
	if (!start && !again && (is_far || opened == wanted))
		return;
	refused &= !again;
	LOCK_TCPIP_CORE();
	if (!is_far)
		open_more();
	started |= start;
	for (size_t i = 0; started && (start || again) && i < opened; i++)
		if (ends[i].source)
			push(&ends[i]);
	tell();
	UNLOCK_TCPIP_CORE();
}

/* ---- setting up ---- */

/* The lab's file: a bijective mixture of the number of each word, little-endian. */
static void make_file(void)
{
	file = malloc(settings.size);
	ends = calloc(settings.connections + 1, sizeof *ends);
	if (!file || !ends)
		fail("the file", "no memory");
	for (size_t word = 0; word < settings.size / 8; word++) {
		uint64_t x = (word + 1) * 0x9e3779b97f4a7c15u;
		x ^= x >> 32;
		x *= 0xd6e8feb86659fd93u;
		x ^= x >> 29;
		for (int i = 0; i < 8; i++)
			file[word * 8 + i] = (uint8_t)(x >> (8 * i));
	}
}

static void open_tap(void)
{
	struct ifreq request = {.ifr_flags = IFF_TAP | IFF_NO_PI};
	strncpy(request.ifr_name, settings.interface, IFNAMSIZ - 1);
	tap = open("/dev/net/tun", O_RDWR | O_NONBLOCK | O_CLOEXEC);
	if (tap < 0 || ioctl(tap, TUNSETIFF, &request))
		fail("making a TAP interface", strerror(errno));
}

static err_t set_up(struct netif *netif)
{
	const uint8_t mac[6] = {2, 0x6c, 0x77, 0, 0, is_far ? 2 : 1};
	memcpy(netif->hwaddr, mac, sizeof mac);
	netif->hwaddr_len = sizeof mac;
	netif->name[0] = 'l';
	netif->name[1] = 'w';
	netif->mtu = (u16_t)settings.mtu;
	netif->flags = NETIF_FLAG_BROADCAST | NETIF_FLAG_ETHARP | NETIF_FLAG_ETHERNET |
		       NETIF_FLAG_LINK_UP;
	netif->output = etharp_output;
	netif->linkoutput = send_frame;
	return ERR_OK;
}

static void ready(void *arg)
{
	sem_post(arg);
}

static void listen_here(void)
{
	struct tcp_pcb *pcb = tcp_new();
	if (!pcb || tcp_bind(pcb, IP_ADDR_ANY, PORT) != ERR_OK || !(pcb = tcp_listen(pcb)))
		fail("listening", "lwIP refuses");
	tcp_accept(pcb, on_accept);
	atomic_store(&shared->listening, true);
}

void start_stack(bool far)
{
	is_far = far;
	make_file();
	if (settings.pair) {
		out = shared->rings[far ? 1 : 0];
		in = shared->rings[far ? 0 : 1];
	} else {
		open_tap();
	}
	sem_t up;
	sem_init(&up, 0, 0);
	tcpip_init(ready, &up);
	sem_wait(&up);
	ip4_addr_t own, mask, none = {0};
	if (!ip4addr_aton(far ? settings.far : settings.near, &own))
		fail("near, far", "are no addresses");
	IP4_ADDR(&mask, 255, 255, 255, 0);
	LOCK_TCPIP_CORE();
	if (!netif_add(&interface, &own, &mask, &none, NULL, set_up, ethernet_input))
		fail("the interface", "lwIP refuses");
	netif_set_default(&interface);
	netif_set_up(&interface);
	if (far)
		listen_here();
	UNLOCK_TCPIP_CORE();
}
