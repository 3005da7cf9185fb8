//go:build unix

package host_test

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/goddp/goddp/comm/backend"
	"github.com/goddp/goddp/comm/backend/backendtest"
	"github.com/goddp/goddp/comm/host"
	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/store"
)

// BenchmarkAllReduce sums float32 numbers over real processes on this host.
// A figure is the median of many single calls, each behind a barrier, as rank
// 0 sees it; "shared" is in place in memory of Alloc's, "private" in Go's.
// Run it with -benchtime 1x: it does its own repeating.
func BenchmarkAllReduce(b *testing.B) {
	for _, n := range []int{2, 4} {
		for _, way := range []string{"shm shared", "shm private", "tcp private"} {
			for _, size := range []int{1 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20, 16 << 20, 64 << 20} {
				b.Run(fmt.Sprintf("ranks=%d/%s/%dKiB", n, strings.ReplaceAll(way, " ", "-"), size>>10), func(b *testing.B) {
					us := benchProcesses(b, n, way, size)
					b.ReportMetric(us, "µs")
					b.ReportMetric(float64(size)/us/1e3*2*float64(n-1)/float64(n), "busbw-GB/s")
					b.ReportMetric(0, "ns/op")
				})
			}
		}
	}
}

// benchProcesses runs the benchmark's ranks and returns rank 0's median.
func benchProcesses(b *testing.B, n int, way string, size int) float64 {
	server, err := store.Listen("127.0.0.1:0", nil)
	if err != nil {
		b.Fatal(err)
	}
	defer server.Close()
	var cmds []*exec.Cmd
	var out strings.Builder
	for r := range n {
		cmd := exec.Command(os.Args[0])
		cmd.Env = append(os.Environ(), fmt.Sprintf("HOST_BENCH_WORKER=%d %d %s %s %d", r, n, server.Addr(), way, size))
		cmd.Stderr = os.Stderr
		if r == 0 {
			cmd.Stdout = &out
		}
		if err := cmd.Start(); err != nil {
			b.Fatal(err)
		}
		cmds = append(cmds, cmd)
	}
	for r, cmd := range cmds {
		if err := cmd.Wait(); err != nil {
			b.Fatalf("rank %d: %v", r, err)
		}
	}
	us, err := strconv.ParseFloat(strings.TrimSpace(out.String()), 64)
	if err != nil {
		b.Fatal(err)
	}
	return us
}

// benchWorker is rank args[0] of args[1] at the store args[2], joined by
// args[3], reducing args[5] bytes in memory of kind args[4].
func benchWorker(args []string) error {
	rank, _ := strconv.Atoi(args[0])
	size, _ := strconv.Atoi(args[1])
	bytes, _ := strconv.Atoi(args[5])
	ctx := context.Background()
	kv, err := store.Dial(ctx, args[2], nil)
	if err != nil {
		return err
	}
	defer kv.Close()
	o := &host.Options{}
	if args[3] == "tcp" {
		o.HostID = args[0]
	}
	g, err := host.New(ctx, backend.Config{Rank: rank, Size: size, Store: kv, Timeout: time.Minute}, o)
	if err != nil {
		return err
	}
	defer g.Close(ctx)
	x := private(g, device.Float32, bytes/4)
	if args[4] == "shared" {
		x = shared(g, device.Float32, bytes/4)
	}
	repeat := 2000
	if bytes > 128<<10 {
		repeat = 30
	}
	var took []time.Duration
	for i := range uint64(repeat + 5) {
		for j, v := 0, device.Elements[float32](x); j < len(v); j++ {
			v[j] = 1
		}
		if err := call(g, &backend.Call{Seq: 2 * i, Kind: backend.Barrier}); err != nil {
			return err
		}
		began := time.Now()
		if err := call(g, &backend.Call{Seq: 2*i + 1, Kind: backend.AllReduce, Dst: x, Src: x}); err != nil {
			return err
		}
		if i >= 5 {
			took = append(took, time.Since(began))
		}
		if v := backendtest.Get(x, bytes/8); v != float64(size) {
			return fmt.Errorf("the sum of %d ones is %v", size, v)
		}
	}
	slices.Sort(took)
	if rank == 0 {
		fmt.Println(float64(took[len(took)/2].Nanoseconds()) / 1e3)
	}
	return nil
}
