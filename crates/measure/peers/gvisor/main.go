// Adapter between the lab and gVisor's netstack.
//
// The lab starts it with settings as key=value arguments, writes commands to its standard input
// and reads answers from its standard output, a line each; the lab's room for such programs says
// what they are. It ends when its standard input does.
package main

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// The protocol between lab and adapter.
const version = 1

type settings struct {
	pair          bool
	device        string
	near, far     string
	prefix        int
	mtu           uint32
	connections   int
	threads       int
	send, receive bool
	write, read   int
	buffer        int
	coalescing    string
	size          int
}

func parse(arguments []string) (settings, error) {
	values := map[string]string{}
	for _, a := range arguments {
		key, value, found := strings.Cut(a, "=")
		if !found {
			return settings{}, fmt.Errorf("%q is no key=value", a)
		}
		values[key] = value
	}
	var wrong error
	number := func(key string) int {
		n, err := strconv.Atoi(values[key])
		if err != nil || n < 0 {
			wrong = fmt.Errorf("%s: %q is no number", key, values[key])
		}
		return n
	}
	s := settings{
		pair:        values["mode"] == "pair",
		device:      values["interface"],
		near:        values["near"],
		far:         values["far"],
		prefix:      number("prefix"),
		mtu:         uint32(number("mtu")),
		connections: number("connections"),
		threads:     number("threads"),
		send:        number("send") != 0,
		receive:     number("receive") != 0,
		write:       number("write"),
		read:        number("read"),
		buffer:      number("buffer"),
		coalescing:  values["coalescing"],
		size:        number("size"),
	}
	return s, wrong
}

// What has been counted so far.
type counters struct {
	at          time.Time
	cpu         int64
	voluntary   int64
	involuntary int64
	again       uint64
	sent        []uint64
	received    []uint64
}

func usage() (cpu, voluntary, involuntary int64) {
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
		fail(err)
	}
	return u.Utime.Nano() + u.Stime.Nano(), u.Nvcsw, u.Nivcsw
}

var answers sync.Mutex

func answer(format string, a ...any) {
	answers.Lock()
	defer answers.Unlock()
	fmt.Printf(format+"\n", a...)
}

// Tells the lab why there is no going on, and ends.
func fail(err error) {
	answer("error %s", strings.ReplaceAll(err.Error(), "\n", " "))
	os.Exit(1)
}

func stackVersion() string {
	info, ok := debug.ReadBuildInfo()
	if ok {
		for _, d := range info.Deps {
			if strings.HasSuffix(d.Path, "/gvisor") {
				return d.Version
			}
		}
	}
	return "unknown"
}

func difference(after, before []uint64) string {
	var text strings.Builder
	for i := range after {
		fmt.Fprintf(&text, " %d", after[i]-before[i])
	}
	return text.String()
}

func report(before, after counters, verified uint64) {
	answer("elapsed %d", after.at.Sub(before.at).Nanoseconds())
	answer("cpu %d", after.cpu-before.cpu)
	answer("switches %d %d", after.voluntary-before.voluntary, after.involuntary-before.involuntary)
	answer("retransmits %d", after.again-before.again)
	answer("verified %d", verified)
	answer("sent%s", difference(after.sent, before.sent))
	answer("received%s", difference(after.received, before.received))
	answer("end")
}

func main() {
	s, err := parse(os.Args[1:])
	if err != nil {
		fail(err)
	}
	runtime.GOMAXPROCS(max(1, s.threads))
	answer("hello %d gvisor %s", version, stackVersion())
	w, err := newWork(s)
	if err != nil {
		fail(err)
	}
	answer("interface")
	var before counters
	commands := bufio.NewScanner(os.Stdin)
	for commands.Scan() {
		words := strings.Fields(commands.Text())
		switch {
		case len(words) == 3 && words[0] == "connect":
			count, err := strconv.Atoi(words[2])
			if err == nil {
				err = w.connect(words[1], count)
			}
			if err != nil {
				fail(err)
			}
		case len(words) == 1 && words[0] == "warm":
			w.start()
		case len(words) == 1 && words[0] == "measure":
			before = w.counters()
			answer("counting")
		case len(words) == 1 && words[0] == "stop":
			after := w.counters()
			report(before, after, w.verified.Load())
			return
		default:
			fail(fmt.Errorf("unknown command %q", commands.Text()))
		}
	}
	fail(errors.New("the lab has gone"))
}
