package main

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"strconv"
	"sync/atomic"
	"time"

	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	"gvisor.dev/gvisor/pkg/tcpip/link/fdbased"
	"gvisor.dev/gvisor/pkg/tcpip/link/pipe"
	"gvisor.dev/gvisor/pkg/tcpip/link/tun"
	"gvisor.dev/gvisor/pkg/tcpip/network/arp"
	"gvisor.dev/gvisor/pkg/tcpip/network/ipv4"
	"gvisor.dev/gvisor/pkg/tcpip/stack"
	"gvisor.dev/gvisor/pkg/tcpip/transport/tcp"
	"gvisor.dev/gvisor/pkg/waiter"
)

const (
	nic = 1
	// Port that the far stack listens on.
	port = 5001
	// One read in this many, the first one included, is compared with what it must be.
	sample = 61
	// Longest wait for one connection.
	patience = 10 * time.Second
)

var (
	nearMAC = tcpip.LinkAddress("\x02\x67\x76\x00\x00\x01")
	farMAC  = tcpip.LinkAddress("\x02\x67\x76\x00\x00\x02")
)

// A pipe whose checksums nobody makes or looks at, as on the lab's other links in memory.
type memory struct{ *pipe.Endpoint }

func (memory) Capabilities() stack.LinkEndpointCapabilities {
	return stack.CapabilityTXChecksumOffload | stack.CapabilityRXChecksumOffload
}

// A connection's end.
type socket struct {
	endpoint tcpip.Endpoint
	queue    *waiter.Queue
	sent     atomic.Uint64
	received atomic.Uint64
}

type work struct {
	settings settings
	stacks   []*stack.Stack
	listener *socket
	// Ends that this program opened, and in a pair those that it accepted.
	near, far []*socket
	file      []byte
	verified  atomic.Uint64
}

func newWork(s settings) (*work, error) {
	w := &work{settings: s, file: content(s.size)}
	if s.pair {
		a, b := pipe.New(nearMAC, farMAC, s.mtu)
		if err := w.add(memory{a}, s.near); err != nil {
			return nil, err
		}
		if err := w.add(memory{b}, s.far); err != nil {
			return nil, err
		}
		return w, w.listen()
	}
	fd, err := tun.OpenTAP(s.device)
	if err != nil {
		return nil, fmt.Errorf("making a TAP interface: %w", err)
	}
	link, err := fdbased.New(&fdbased.Options{
		FDs:            []int{fd},
		MTU:            s.mtu,
		EthernetHeader: true,
		Address:        nearMAC,
	})
	if err != nil {
		return nil, err
	}
	return w, w.add(link, s.near)
}

// The lab's file: a bijective mixture of the number of each word.
func content(size int) []byte {
	file := make([]byte, size)
	for i := 0; i < size/8; i++ {
		x := (uint64(i) + 1) * 0x9e3779b97f4a7c15
		x ^= x >> 32
		x *= 0xd6e8feb86659fd93
		binary.LittleEndian.PutUint64(file[i*8:], x^(x>>29))
	}
	return file
}

func wrap(what string, err tcpip.Error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s: %s", what, err)
}

func address(text string) (tcpip.Address, error) {
	ip := net.ParseIP(text).To4()
	if ip == nil {
		return tcpip.Address{}, fmt.Errorf("%q is no IPv4 address", text)
	}
	return tcpip.AddrFrom4([4]byte(ip)), nil
}

// Adds a stack with one interface.
func (w *work) add(link stack.LinkEndpoint, at string) error {
	own, err := address(at)
	if err != nil {
		return err
	}
	s := stack.New(stack.Options{
		NetworkProtocols:   []stack.NetworkProtocolFactory{ipv4.NewProtocol, arp.NewProtocol},
		TransportProtocols: []stack.TransportProtocolFactory{tcp.NewProtocol},
	})
	buffer := w.settings.buffer
	send := tcpip.TCPSendBufferSizeRangeOption{Min: 4096, Default: buffer, Max: max(buffer, 4096)}
	receive := tcpip.TCPReceiveBufferSizeRangeOption{Min: 4096, Default: buffer, Max: max(buffer, 4096)}
	cubic := tcpip.CongestionControlOption("cubic")
	sack := tcpip.TCPSACKEnabled(true)
	moderate := tcpip.TCPModerateReceiveBufferOption(false)
	for _, option := range []tcpip.SettableTransportProtocolOption{&send, &receive, &cubic, &sack, &moderate} {
		if err := s.SetTransportProtocolOption(tcp.ProtocolNumber, option); err != nil {
			return wrap("an option", err)
		}
	}
	if err := s.CreateNIC(nic, link); err != nil {
		return wrap("the interface", err)
	}
	with := tcpip.ProtocolAddress{
		Protocol:          ipv4.ProtocolNumber,
		AddressWithPrefix: tcpip.AddressWithPrefix{Address: own, PrefixLen: w.settings.prefix},
	}
	if err := s.AddProtocolAddress(nic, with, stack.AddressProperties{}); err != nil {
		return wrap("the address", err)
	}
	s.SetRouteTable([]tcpip.Route{{Destination: header.IPv4EmptySubnet, NIC: nic}})
	w.stacks = append(w.stacks, s)
	return nil
}

func open(s *stack.Stack) (*socket, error) {
	queue := &waiter.Queue{}
	endpoint, err := s.NewEndpoint(tcp.ProtocolNumber, ipv4.ProtocolNumber, queue)
	return &socket{endpoint: endpoint, queue: queue}, wrap("opening a socket", err)
}

func (w *work) listen() error {
	s, err := open(w.stacks[1])
	if err != nil {
		return err
	}
	if err := s.endpoint.Bind(tcpip.FullAddress{Port: port}); err != nil {
		return wrap("binding", err)
	}
	w.listener = s
	return wrap("listening", s.endpoint.Listen(1024))
}

// Waits for one of `events`, but not for ever.
func (s *socket) await(events waiter.EventMask, try func() tcpip.Error) tcpip.Error {
	entry, notified := waiter.NewChannelEntry(events)
	s.queue.EventRegister(&entry)
	defer s.queue.EventUnregister(&entry)
	timeout := time.NewTimer(patience)
	defer timeout.Stop()
	for {
		err := try()
		switch err.(type) {
		case *tcpip.ErrWouldBlock, *tcpip.ErrConnectStarted, *tcpip.ErrAlreadyConnecting:
		default:
			return err
		}
		select {
		case <-notified:
		case <-timeout.C:
			return &tcpip.ErrTimeout{}
		}
	}
}

// Opens `count` connections to `to`, one after the other.
func (w *work) connect(to string, count int) error {
	host, service, err := net.SplitHostPort(to)
	if err != nil {
		return err
	}
	number, err := strconv.ParseUint(service, 10, 16)
	if err != nil {
		return err
	}
	peer, err := address(host)
	if err != nil {
		return err
	}
	if w.settings.pair {
		number = port
	}
	for i := 0; i < count; i++ {
		s, err := open(w.stacks[0])
		if err != nil {
			return err
		}
		s.prepare(w.settings.coalescing)
		at := tcpip.FullAddress{NIC: nic, Addr: peer, Port: uint16(number)}
		started := false
		failed := s.await(waiter.WritableEvents|waiter.EventErr|waiter.EventHUp, func() tcpip.Error {
			if !started {
				started = true
				return s.endpoint.Connect(at)
			}
			if e := s.endpoint.LastError(); e != nil {
				return e
			}
			if tcp.EndpointState(s.endpoint.State()) == tcp.StateEstablished {
				return nil
			}
			return &tcpip.ErrWouldBlock{}
		})
		if failed != nil {
			return wrap("connecting", failed)
		}
		w.near = append(w.near, s)
		if w.listener != nil {
			if err := w.accept(); err != nil {
				return err
			}
		}
		answer("opened")
	}
	return nil
}

func (w *work) accept() error {
	s := &socket{}
	failed := w.listener.await(waiter.ReadableEvents, func() tcpip.Error {
		endpoint, queue, err := w.listener.endpoint.Accept(nil)
		s.endpoint, s.queue = endpoint, queue
		return err
	})
	if failed != nil {
		return wrap("accepting", failed)
	}
	s.prepare(w.settings.coalescing)
	w.far = append(w.far, s)
	return nil
}

func (s *socket) prepare(coalescing string) {
	options := s.endpoint.SocketOptions()
	options.SetDelayOption(coalescing != "nodelay")
	options.SetCorkOption(coalescing == "cork")
}

// Lets traffic flow: a goroutine for each connection and direction.
func (w *work) start() {
	for i := range w.near {
		if w.settings.send {
			go w.source(w.near[i])
		}
		if w.settings.receive {
			go w.sink(w.near[i])
		}
	}
	for i := range w.far {
		if w.settings.receive {
			go w.source(w.far[i])
		}
		if w.settings.send {
			go w.sink(w.far[i])
		}
	}
}

func (w *work) source(s *socket) {
	entry, notified := waiter.NewChannelEntry(waiter.WritableEvents | waiter.EventErr | waiter.EventHUp)
	s.queue.EventRegister(&entry)
	var reader bytes.Reader
	for {
		at := int(s.sent.Load() % uint64(len(w.file)))
		reader.Reset(w.file[at:min(at+w.settings.write, len(w.file))])
		n, err := s.endpoint.Write(&reader, tcpip.WriteOptions{})
		s.sent.Add(uint64(n))
		if _, full := err.(*tcpip.ErrWouldBlock); full {
			<-notified
		} else if err != nil {
			broken(wrap("sending", err))
		}
	}
}

// A connection has broken. When the kernel's end was stopped first, the lab's word to stop is under
// way, and this was no failure.
func broken(err error) {
	time.Sleep(300 * time.Millisecond)
	fail(err)
}

// Counts what is written to it and drops it.
type discard struct{}

func (discard) Write(p []byte) (int, error) { return len(p), nil }

func (w *work) sink(s *socket) {
	entry, notified := waiter.NewChannelEntry(waiter.ReadableEvents | waiter.EventErr | waiter.EventHUp)
	s.queue.EventRegister(&entry)
	var taken bytes.Buffer
	reads := 0
	for {
		sampled := reads%sample == 0
		into := tcpip.LimitedWriter{W: discard{}, N: int64(w.settings.read)}
		if sampled {
			taken.Reset()
			into.W = &taken
			into.N = min(into.N, 16*1024)
		}
		result, err := s.endpoint.Read(&into, tcpip.ReadOptions{})
		if _, empty := err.(*tcpip.ErrWouldBlock); empty {
			<-notified
			continue
		}
		if err != nil {
			broken(wrap("receiving", err))
		}
		if sampled {
			if err := w.compare(s.received.Load(), taken.Bytes()); err != nil {
				fail(err)
			}
		}
		s.received.Add(uint64(result.Count))
		reads++
	}
}

func (w *work) compare(offset uint64, data []byte) error {
	for len(data) > 0 {
		at := int(offset % uint64(len(w.file)))
		n := min(len(data), len(w.file)-at)
		if !bytes.Equal(data[:n], w.file[at:at+n]) {
			return errors.New("received bytes differ from what was sent")
		}
		w.verified.Add(uint64(n))
		offset += uint64(n)
		data = data[n:]
	}
	return nil
}

func (w *work) counters() counters {
	var c counters
	// Those that receive: the far ends of a pair, the near ones, or both.
	for _, s := range w.near {
		c.sent = append(c.sent, s.sent.Load())
	}
	sinks := [][]*socket{}
	if w.settings.send {
		sinks = append(sinks, w.far)
	}
	if w.settings.receive {
		sinks = append(sinks, w.near)
	}
	for _, list := range sinks {
		for _, s := range list {
			c.received = append(c.received, s.received.Load())
		}
	}
	for _, s := range w.stacks {
		c.again += s.Stats().TCP.Retransmits.Value()
	}
	c.cpu, c.voluntary, c.involuntary = usage()
	c.at = time.Now()
	return c
}
