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

// What an attack on a store consists of, on average: at least 520 waits and 10,000 frames.
const (
	idle      = 2000
	waits     = 640
	waitKeys  = 131071
	frames    = 12000
	attackers = 4 // at the same time
	openHalf  = 200
)

// attack is what the attacking process does: it attacks the stores at two addresses, the
// job's and another, spread over a time in seconds, says "done", and keeps its connections
// until stdin ends. Each byte of stdin says which of the stores is next.
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
	var keep connections
	defer keep.close()
	for range idle {
		for _, addr := range addrs {
			keep.dial(addr)
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
				if i*waits/frames != (i+1)*waits/frames { // 2*waits/attackers of them
					if c := keep.dial(addr); c != nil {
						c.SetWriteDeadline(time.Now().Add(10 * time.Second))
						c.Write(wait) // the store may hang up on it
					}
				}
				c, err := net.DialTimeout("tcp", addr, time.Second)
				if err != nil {
					continue
				}
				c.SetDeadline(time.Now().Add(time.Second))
				text, half := frame(r, i)
				c.Write(text)
				if half && i%(frames/openHalf) == 0 {
					keep.add(c)
				} else {
					c.Close()
				}
			}
		})
	}
	wg.Wait()
	fmt.Printf("done: %d frames to the job's store, %d to the other; %d of %d connections that were kept are open\n",
		sent[1].Load(), sent[0].Load(), keep.alive(), len(keep.open))
	<-ended
	return nil
}

// connections are those that the attacker keeps.
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

// hello opens a connection of the dialect of PyTorch 2.x.
var hello = binary.LittleEndian.AppendUint32([]byte{0}, 0x3C85F7CE)

// The codes of requests.
const (
	codeSet  = 1
	codeWait = 6
)

// waitFrame waits for very many empty keys.
func waitFrame() []byte {
	b := append(append([]byte(nil), hello...), codeWait)
	b = binary.LittleEndian.AppendUint64(b, waitKeys)
	return append(b, make([]byte, 8*waitKeys)...)
}

// frame is the i-th attack of one attacker, and whether the store has to wait for more.
func frame(r *rand.Rand, i int) (text []byte, half bool) {
	opened := func(code byte) []byte { return append(append([]byte(nil), hello...), code) }
	le := binary.LittleEndian
	noise := make([]byte, 1+r.IntN(4096))
	for i := range noise {
		noise[i] = byte(r.Uint32())
	}
	switch i % 8 {
	case 0:
		return noise, false
	case 1: // a key of exabytes
		return le.AppendUint64(opened(codeSet), 1<<62), false
	case 2: // a key cut off
		return append(le.AppendUint64(opened(codeSet), 5000), noise[:min(len(noise), 4999)]...), true
	case 3: // a value cut off
		return append(le.AppendUint64(append(le.AppendUint64(opened(codeSet), 1), 'k'), 8<<20), noise...), true
	case 4: // keys cut off
		return append(le.AppendUint64(opened(codeWait), 100000), make([]byte, 8*100)...), true
	case 5: // a code that there is not
		return append(opened(200), noise...), false
	case 6: // a value that stays
		key := fmt.Sprintf("hostile/%d/%d", r.Uint64(), i)
		b := append(le.AppendUint64(opened(codeSet), uint64(len(key))), key...)
		return append(le.AppendUint64(b, 64<<10), make([]byte, 64<<10)...), false
	default:
		return []byte("GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"), false
	}
}
