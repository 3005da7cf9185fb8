package main

import (
	"context"
	"encoding/binary"
	"math/rand/v2"
	"net"
	"sync/atomic"
	"time"
)

// Limits of the garbage.
const (
	mostConnections = 24                    // to one listener
	garbageInterval = 10 * time.Millisecond // between looks for listeners
)

// spray connects to every socket on which the scenario's processes listen, until ctx ends, and sends
// garbage. It counts in taken the connections that were accepted.
func spray(ctx context.Context, dir string, seed uint64, taken *atomic.Int64) {
	r := rand.New(rand.NewPCG(seed, 0))
	sent := map[address]int{}
	var open []net.Conn
	defer func() {
		for _, c := range open {
			c.Close()
		}
	}()
	ticker := time.NewTicker(garbageInterval)
	defer ticker.Stop()
	for {
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return
		}
		for _, a := range listeners(processes(dir)) {
			if sent[a] == mostConnections {
				continue
			}
			conn, err := (&net.Dialer{Timeout: 200 * time.Millisecond}).DialContext(ctx, a.network, a.addr)
			if err != nil {
				continue // the listener has just closed
			}
			sent[a]++
			taken.Add(1)
			conn.SetDeadline(time.Now().Add(200 * time.Millisecond))
			conn.Write(randomGarbage(r)) // the other end may have closed the connection
			if r.IntN(2) == 0 {
				conn.Close()
			} else {
				open = append(open, conn) // stays open and silent
			}
		}
	}
}

// randomGarbage returns what a port scanner, a client of another protocol, or a client that dies in
// the middle of a request may send.
func randomGarbage(r *rand.Rand) []byte {
	random := make([]byte, 1+r.IntN(4096))
	for i := range random {
		random[i] = byte(r.Uint32())
	}
	// hello is how a client of PyTorch's store begins.
	hello := binary.LittleEndian.AppendUint32([]byte{0}, 0x3C85F7CE)
	switch r.IntN(7) {
	case 0:
		return nil
	case 1:
		return []byte("GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
	case 2: // a key of many exabytes
		return binary.LittleEndian.AppendUint64(append(hello, 1), 1<<62)
	case 3: // a request that ends too early
		return append(binary.LittleEndian.AppendUint64(append(hello, 1), 100), random[:min(50, len(random))]...)
	case 4: // unknown request codes
		return append(hello, random...)
	case 5:
		return make([]byte, 1+r.IntN(4096))
	}
	return random
}
