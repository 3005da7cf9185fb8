package coordinator

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// ranksVar is the name of an environment variable. If the variable is set, this test binary does not
// run tests: it runs the ranks of a job. The variable's value is "SIZE ADDRESS": the number of ranks
// and the address of the coordinator.
const ranksVar = "GODDP_TEST_RANKS"

func init() {
	if job := os.Getenv(ranksVar); job != "" {
		if err := ranks(job); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
}

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

// ranks runs all ranks of a job in this process. When ranks reads a line from its standard input, it
// closes the connection of one rank and measures what this death costs the other ranks.
func ranks(job string) error {
	var size int
	var addr string
	if _, err := fmt.Sscan(job, &size, &addr); err != nil {
		return err
	}
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
	if err := json.NewEncoder(os.Stdout).Encode(d); err != nil {
		return err
	}
	fmt.Scanln()
	return nil
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
			d, err := measureDeath(size)
			if err != nil {
				b.Fatal(err)
			}
			measured[size] = append(measured[size], d)
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

func measureDeath(size int) (d death, err error) {
	before := memory()
	s, err := Listen("127.0.0.1:0", size, scaleOptions)
	if err != nil {
		return d, err
	}
	defer s.Close()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), fmt.Sprintf("%s=%d %v", ranksVar, size, s.Addr()))
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		return d, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return d, err
	}
	if err := cmd.Start(); err != nil {
		return d, err
	}
	defer cmd.Wait()
	defer in.Close()
	lines := bufio.NewScanner(out)
	if !lines.Scan() {
		return d, errors.New("the ranks have not joined")
	}
	held := memory() - before
	spent := processorTime()
	fmt.Fprintln(in)
	if !lines.Scan() {
		return d, errors.New("the ranks have measured nothing")
	}
	spent = processorTime() - spent
	err = json.Unmarshal(lines.Bytes(), &d)
	d.CPU, d.Memory = spent, held/float64(size)
	return d, err
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
