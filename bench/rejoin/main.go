// Command rejoin measures how soon ranks compute together again after one of them was killed, without golaunch.
//
//	go run ./bench/rejoin -ranks 2 -kills 10
//
// The last rank is killed with SIGKILL at a random moment. The others get the error, close their group and make
// another: with a process that is started in place of the dead one (-fault replace), or without it (shrink, which ends
// when one rank is left). With -fault abort nobody dies: the last rank aborts the group, and all ranks make another.
// All the time the ranks all-reduce -bytes bytes; the first result of each group is checked. The table has the times
// of the slowest rank that lives, over all kills: from the kill to the error, Close, Init, and from the kill to the
// end of the first new all-reduce.
package main

import (
	"bufio"
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/goddp/goddp/autograd"
	"github.com/goddp/goddp/comm"
)

var (
	ranks   = flag.Int("ranks", 2, "number of ranks")
	kills   = flag.Int("kills", 10, "number of kills, or aborts")
	fault   = flag.String("fault", "replace", "replace, shrink or abort")
	bytes   = flag.Int("bytes", 1<<20, "size of the all-reduce")
	seed    = flag.Uint64("seed", 1, "seed of the moments")
	verbose = flag.Bool("v", false, "workers log what they do, with times, to stderr")
)

const timeout = 30 * time.Second

// worker trains until its parent kills it. Its lines on stdout are events: a word and a number of nanoseconds since
// 1970.
func worker(ctx context.Context) error {
	w, err := comm.WorldFromEnv()
	if err != nil {
		return err
	}
	log := slog.New(slog.DiscardHandler)
	if *verbose {
		log = slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelDebug}))
	}
	dev, err := comm.OpenDevice(nil)
	if err != nil {
		return err
	}
	defer dev.Close()
	for w.Size > 0 {
		event("join")
		pg, err := comm.Init(ctx, &comm.Options{World: &w, Device: dev, ErrorMode: comm.BlockingWait, Timeout: timeout, Log: log})
		if err != nil {
			return err
		}
		event("joined")
		err = train(ctx, pg)
		event("failed")
		pg.Close()
		event("closed")
		if !errors.Is(err, comm.ErrPeerLost) && !errors.Is(err, comm.ErrAborted) {
			return err
		}
		if *fault == "shrink" {
			w.Size, w.LocalSize = w.Size-1, w.LocalSize-1
		}
	}
	return nil
}

func event(word string) { fmt.Println(word, time.Now().UnixNano()) }

// train averages ones, which stay ones, until a call fails. With -fault abort a line on stdin makes the last rank
// abort the group.
func train(ctx context.Context, pg *comm.ProcessGroup) error {
	if *fault == "abort" && pg.Rank() == pg.Size()-1 {
		go func() {
			bufio.NewReader(os.Stdin).ReadString('\n')
			event("kill")
			pg.Abort(nil)
		}()
	}
	ones := slices.Repeat([]float32{1}, *bytes/4)
	x := autograd.FromSlice(pg.Device(), ones, len(ones))
	for first := true; ; first = false {
		if err := pg.AllReduce(x.Tensor(), comm.Avg).Wait(ctx); err != nil {
			return err
		}
		if !first {
			continue
		}
		values, err := x.Read(ctx)
		if err != nil {
			return err
		}
		if i := slices.IndexFunc(values, func(v float64) bool { return v != 1 }); i >= 0 {
			return fmt.Errorf("element %d of the average of ones is %v, want 1", i, values[i])
		}
		event("stepped")
	}
}

// process is a worker as its parent sees it.
type process struct {
	*exec.Cmd
	stdin  interface{ Write([]byte) (int, error) }
	events chan string // lines; closed when the worker has ended
}

func start(rank, size, port int) (*process, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	p := &process{Cmd: exec.Command(self, os.Args[1:]...), events: make(chan string, 1<<10)}
	p.Env = append(os.Environ(), fmt.Sprintf("RANK=%d", rank), fmt.Sprintf("WORLD_SIZE=%d", size), "MASTER_ADDR=127.0.0.1", fmt.Sprintf("MASTER_PORT=%d", port))
	p.Stderr = os.Stderr
	if p.stdin, err = p.StdinPipe(); err != nil {
		return nil, err
	}
	out, err := p.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := p.Start(); err != nil {
		return nil, err
	}
	go func() {
		defer close(p.events)
		for s := bufio.NewScanner(out); s.Scan(); {
			p.events <- s.Text()
		}
	}()
	return p, nil
}

// await returns when an event of the given word happened.
func (p *process) await(word string) (time.Time, error) {
	limit := time.After(2 * timeout)
	for {
		select {
		case line, ok := <-p.events:
			if !ok {
				return time.Time{}, fmt.Errorf("a worker ended before it said %q: %w", word, p.Wait())
			}
			if said, at, ok := strings.Cut(line, " "); ok && said == word {
				ns, err := strconv.ParseInt(at, 10, 64)
				return time.Unix(0, ns), err
			}
		case <-limit:
			return time.Time{}, fmt.Errorf("a worker has not said %q for %v", word, 2*timeout)
		}
	}
}

// campaign kills ranks and prints the table.
func campaign() error {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	port := ln.Addr().(*net.TCPAddr).Port
	ln.Close()
	var all []*process
	defer func() {
		for _, p := range all {
			p.Process.Kill()
			p.Wait()
		}
	}()
	for r := range *ranks {
		p, err := start(r, *ranks, port)
		if err != nil {
			return err
		}
		all = append(all, p)
	}
	random := rand.New(rand.NewPCG(*seed, 0))
	parts := []string{"kill to error", "Close", "Init", "to new step"}
	took := make([][]time.Duration, len(parts))
	fresh := all // processes of which no event was read
	for range *kills {
		for _, p := range fresh {
			if _, err := p.await("stepped"); err != nil {
				return err
			}
		}
		fresh = nil
		if *fault == "shrink" && len(all) == 1 {
			break
		}
		time.Sleep(time.Duration(random.IntN(int(200 * time.Millisecond))))
		last := all[len(all)-1]
		killed := time.Now()
		survivors := all
		if *fault == "abort" {
			last.stdin.Write([]byte("\n"))
			if killed, err = last.await("kill"); err != nil {
				return err
			}
		} else {
			last.Process.Kill()
			last.Wait()
			survivors = all[:len(all)-1]
			all = survivors
		}
		if *fault == "replace" {
			p, err := start(*ranks-1, *ranks, port)
			if err != nil {
				return err
			}
			fresh = []*process{p}
			all = append(slices.Clone(survivors), p)
		}
		worst := make([]time.Duration, len(parts))
		for _, p := range survivors {
			before := killed
			for i, word := range []string{"failed", "closed", "joined", "stepped"} {
				at, err := p.await(word)
				if err != nil {
					return err
				}
				d := at.Sub(before)
				if word == "stepped" {
					d = at.Sub(killed)
				}
				worst[i], before = max(worst[i], d), at
			}
		}
		for i, d := range worst {
			took[i] = append(took[i], d)
		}
	}
	fmt.Printf("%d ranks, %s, %d bytes: %d times, the slowest survivor of each, in ms\n", *ranks, *fault, *bytes, len(took[0]))
	for i, part := range parts {
		slices.Sort(took[i])
		n := len(took[i])
		fmt.Printf("%-14s median %7.1f  worst %7.1f\n", part, ms(took[i][n/2]), ms(took[i][n-1]))
	}
	return nil
}

func ms(d time.Duration) float64 { return d.Seconds() * 1000 }

func main() {
	flag.Parse()
	if os.Getenv("RANK") != "" {
		comm.Main(worker)
	}
	if err := campaign(); err != nil {
		fmt.Fprintln(os.Stderr, "rejoin:", err)
		os.Exit(1)
	}
}
