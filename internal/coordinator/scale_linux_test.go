package coordinator

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"runtime"
	"slices"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/goddp/goddp/internal/testkit"
)

func init() { programs["ranks"] = ranks }

// death is the cost of a rank's death.
type death struct {
	// Notified is the time from the death until all surviving ranks have received Failed. Settled is
	// the time from the death until all surviving ranks have received Settled.
	Notified, Settled time.Duration
	// Bytes and Messages are the numbers of bytes and of TCP segments per surviving rank. Both count
	// what the rank sends and what it receives.
	Bytes, Messages float64
	CPU             time.Duration // the processor time that the coordinator has used
	Memory          float64       // the coordinator's memory per connected rank, in bytes
}

// ranks is a program that runs all ranks of a job. Its arguments are the number of ranks and the address of the
// coordinator. When it reads a line from its standard input, it closes the connection of one rank and measures what
// this death costs the other ranks.
func ranks() {
	size, err := strconv.Atoi(os.Args[1])
	if err == nil {
		err = measure(size, os.Args[2])
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func measure(size int, addr string) error {
	clients, errs := make([]*Client, size), make([]error, size)
	each := func(f func(r int) error) error {
		var wg sync.WaitGroup
		for r := range size {
			wg.Go(func() { errs[r] = f(r) })
		}
		wg.Wait()
		return errors.Join(errs...)
	}
	ctx := context.Background()
	err := each(func(r int) (err error) {
		clients[r], err = Dial(ctx, addr, r, ClientOptions{Options: scaleOptions, Size: size, HostRank: -1})
		return err
	})
	if err == nil {
		err = each(func(r int) error {
			_, err := clients[r].Join(ctx, 1, nil, false, nil)
			return err
		})
	}
	if err != nil {
		return err
	}
	runtime.GC()
	fmt.Println("joined")
	fmt.Scanln()

	dies, others := clients[size/2], slices.Delete(slices.Clone(clients), size/2, size/2+1)
	bytes, messages := traffic(others)
	var d death
	start := time.Now()
	dies.Close()
	for _, c := range others {
		<-c.Root().Failed()
	}
	d.Notified = time.Since(start)
	for _, c := range others {
		<-c.Root().Settled()
	}
	d.Settled = time.Since(start)
	b, m := traffic(others)
	d.Bytes, d.Messages = float64(b-bytes)/float64(len(others)), float64(m-messages)/float64(len(others))
	return json.NewEncoder(os.Stdout).Encode(d)
}

// scaleOptions set such a long Interval that neither end sends Alive during the measurement.
var scaleOptions = Options{Key: []byte("key"), HasSecret: true, Interval: time.Hour}

// traffic returns the numbers of bytes and TCP segments that the clients have sent and received.
func traffic(clients []*Client) (bytes, segments uint64) {
	for _, c := range clients {
		raw, err := c.conn.SyscallConn()
		if err != nil {
			panic(err)
		}
		raw.Control(func(fd uintptr) {
			info, err := unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO)
			if err != nil {
				panic(err)
			}
			bytes += info.Bytes_sent + info.Bytes_received
			segments += uint64(info.Data_segs_in + info.Data_segs_out)
		})
	}
	return bytes, segments
}

// BenchmarkDeath measures the cost of one rank's death in jobs of 100 and 1,000 ranks. BenchmarkDeath
// runs each job b.N times, and reports the median of each field of death. The coordinator runs in this
// process, and all ranks run in another process. They communicate over TCP.
func BenchmarkDeath(b *testing.B) {
	sizes := []int{100, 1000}
	measured := map[int][]death{}
	for range b.N {
		for _, size := range sizes {
			measured[size] = append(measured[size], measureDeath(b, size))
		}
	}
	for name, value := range map[string]func(d death) float64{
		"ms-told":     func(d death) float64 { return d.Notified.Seconds() * 1e3 },
		"ms-settled":  func(d death) float64 { return d.Settled.Seconds() * 1e3 },
		"cpu-ms":      func(d death) float64 { return d.CPU.Seconds() * 1e3 },
		"B/rank":      func(d death) float64 { return d.Bytes },
		"msg/rank":    func(d death) float64 { return d.Messages },
		"memory/rank": func(d death) float64 { return d.Memory },
	} {
		for _, size := range sizes {
			var all []float64
			for _, d := range measured[size] {
				all = append(all, value(d))
			}
			slices.Sort(all)
			b.ReportMetric(all[len(all)/2], fmt.Sprintf("%s-%d", name, size))
		}
	}
}

func measureDeath(b *testing.B, size int) (d death) {
	before := memory()
	s, err := Listen("127.0.0.1:0", size, scaleOptions)
	if err != nil {
		b.Fatal(err)
	}
	defer s.Close()
	cmd := testkit.Self(b, "ranks", strconv.Itoa(size), s.Addr().String())
	in, err := cmd.StdinPipe()
	if err != nil {
		b.Fatal(err)
	}
	p := testkit.Start(b, cmd)
	p.Await("^joined$", 1)
	held := memory() - before
	spent := processorTime()
	fmt.Fprintln(in)
	result := p.Await("^{", 1)
	spent = processorTime() - spent
	if err := json.Unmarshal([]byte(result.Text), &d); err != nil {
		b.Fatal(err)
	}
	d.CPU, d.Memory = spent, held/float64(size)
	return d
}

// memory returns the memory that this process uses, in bytes.
func memory() float64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return float64(m.HeapAlloc + m.StackInuse)
}

func processorTime() time.Duration {
	var u syscall.Rusage
	syscall.Getrusage(syscall.RUSAGE_SELF, &u)
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
