package main

import (
	"context"
	"encoding/binary"
	"math/rand/v2"
	"net"
	"sync/atomic"
	"time"
)

// How much garbage a listener gets.
const (
	mostConnections = 24 // a listener
	garbageInterval = 10 * time.Millisecond
)

// spray connects to whatever the scenario's processes listen on, from before
// they do until ctx ends, and sends nonsense. It counts the connections that
// were taken.
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
				continue // it has just closed
			}
			sent[a]++
			taken.Add(1)
			conn.SetDeadline(time.Now().Add(200 * time.Millisecond))
			conn.Write(nonsense(r)) // the other end may hang up on it
			if r.IntN(2) == 0 {
				conn.Close()
			} else {
				open = append(open, conn) // silent from here on
			}
		}
	}
}

// nonsense is what a port may be sent by a scanner, a confused client, or one
// that dies in the middle of a word.
func nonsense(r *rand.Rand) []byte {
	random := make([]byte, 1+r.IntN(4096))
	for i := range random {
		random[i] = byte(r.Uint32())
	}
	// A client of PyTorch's store opens so.
	hello := binary.LittleEndian.AppendUint32([]byte{0}, 0x3C85F7CE)
	switch r.IntN(7) {
	case 0:
		return nil
	case 1:
		return []byte("GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
	case 2: // a key of many exabytes
		return binary.LittleEndian.AppendUint64(append(hello, 1), 1<<62)
	case 3: // a request cut off
		return append(binary.LittleEndian.AppendUint64(append(hello, 1), 100), random[:min(50, len(random))]...)
	case 4: // codes that there are not
		return append(hello, random...)
	case 5:
		return make([]byte, 1+r.IntN(4096))
	}
	return random
}
