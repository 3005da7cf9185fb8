//go:build cgo && linux

package nccl_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/goddp/goddp/comm/internal/nccl"
	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/device/cuda"
	"github.com/goddp/goddp/internal/backend"
	"github.com/goddp/goddp/internal/coordinator"
	"github.com/goddp/goddp/internal/store"
	"github.com/goddp/goddp/internal/testkit"
	"github.com/goddp/goddp/internal/testkit/backendtest"
	"github.com/goddp/goddp/internal/testkit/coordinatortest"
	"github.com/goddp/goddp/internal/testkit/fakegpu"
)

const soon = backendtest.Soon

// avgTolerance is three times the error of NCCL's averages, which round 1/n to the type before the sum.
var avgTolerance = map[device.DType]float64{device.Float32: 3e-6, device.Float64: 3e-15, device.Float16: 12e-3, device.BFloat16: 9e-2}

func newRank(b backend.Backend, cfg backend.Config) *backendtest.Rank {
	return &backendtest.Rank{Backend: b, Rank: cfg.Rank, Size: cfg.Size, Device: cfg.Device, Control: cfg.Control, AvgTolerance: avgTolerance}
}

func TestMain(m *testing.M) {
	testkit.Main(m, map[string]func(){"worker": func() { worker(os.Args[1:]) }})
}

// control sets the faults of the fake libraries. At the end of the test it waits until hung calls
// have returned.
func control(t testing.TB, lines ...string) (release func()) {
	t.Helper()
	release = fakegpu.Use(t, lines...)
	before := goleak.IgnoreCurrent()
	t.Cleanup(func() {
		release()
		for deadline := time.Now().Add(soon); ; time.Sleep(5 * time.Millisecond) {
			err := goleak.Find(before)
			if err == nil {
				return
			}
			if time.Now().After(deadline) {
				t.Error(err)
				return
			}
		}
	})
	return release
}

// attempt tries to make a group of n ranks in this process, on fake GPUs.
func attempt(t testing.TB, n int, change func(rank int, cfg *backend.Config, o *nccl.Options)) ([]*backendtest.Rank, []error) {
	t.Helper()
	ranks := coordinatortest.Ranks(t, n)
	members, errs := make([]*backendtest.Rank, n), make([]error, n)
	var wg sync.WaitGroup
	for r := range n {
		wg.Go(func() {
			dev, err := fakegpu.Open(r)
			if err != nil {
				errs[r] = err
				return
			}
			t.Cleanup(func() { dev.Close() })
			cfg := backend.Config{Rank: r, Size: n, Control: ranks[r], Device: dev, Timeout: soon}
			var o nccl.Options
			if change != nil {
				change(r, &cfg, &o)
			}
			var b backend.Backend
			b, errs[r] = nccl.New(t.Context(), cfg, &o)
			members[r] = newRank(b, cfg)
		})
	}
	wg.Wait()
	return members, errs
}

// world makes a group of n ranks and closes it at the end of the test.
func world(t testing.TB, n int) []*backendtest.Rank { return worldOf(t, n, nil) }

func worldOf(t testing.TB, n int, change func(rank int, cfg *backend.Config)) []*backendtest.Rank {
	t.Helper()
	members, errs := attempt(t, n, func(rank int, cfg *backend.Config, _ *nccl.Options) {
		if change != nil {
			change(rank, cfg)
		}
	})
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { backendtest.CloseAll(members, 5*time.Second) })
	return members
}

// A small all-reduce takes wide elements in wide lines. It does not take as many as large.
const (
	wide  = 100_000
	large = 1 << 20
)

// worker is rank args[1] of args[2], at the store args[3], on a GPU of the kind args[0]: "real" or
// "fakegpu". It runs the scenario args[4] and prints how that ended.
func worker(args []string) {
	rank, _ := strconv.Atoi(args[1])
	size, _ := strconv.Atoi(args[2])
	fmt.Println("ended:", backendtest.Describe(func() error {
		ctx := context.Background()
		kv, err := store.Dial(ctx, args[3], nil)
		if err != nil {
			return err
		}
		defer kv.Close()
		dev, err := open(args[0], rank)
		if err != nil {
			return err
		}
		defer dev.Close()
		meet := launched
		if strings.HasPrefix(args[4], "hosted-") {
			meet = coordinatortest.OfProcess
		}
		control, release, err := meet(ctx, kv, rank, size)
		defer release()
		if err != nil {
			return err
		}
		cfg := backend.Config{Rank: rank, Size: size, Control: control, Device: dev, Timeout: time.Minute}
		b, err := nccl.New(ctx, cfg, nil)
		if err != nil {
			return err
		}
		m := newRank(b, cfg)
		defer backendtest.CloseAll([]*backendtest.Rank{m}, 3*time.Second)
		return scenarios[args[4]](m)
	}()))
}

// launched joins the coordinator that launch hosts. The tests use coordinatortest.OfProcess if rank
// 0 hosts it.
func launched(ctx context.Context, kv store.Store, rank, size int) (g *coordinator.Group, release func(), err error) {
	client, err := coordinator.Find(ctx, kv, store.Member{Rank: rank}, coordinator.ClientOptions{Size: size})
	if err != nil {
		return nil, func() {}, err
	}
	_, err = client.Join(ctx, 1, nil, false, nil)
	return client.Root(), func() { client.Depart(ctx) }, err
}

func open(kind string, rank int) (device.Device, error) {
	if kind == "real" {
		return cuda.Open(rank, nil)
	}
	return fakegpu.Open(rank)
}

// launch starts a scenario in n processes on GPUs of the given kind, and hosts their coordinator.
func launch(t *testing.T, kind string, n int, scenario string) workers {
	t.Helper()
	server, err := store.Listen("127.0.0.1:0", nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { server.Close() })
	kv, err := store.Dial(t.Context(), server.Addr(), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer kv.Close()
	if !strings.HasPrefix(scenario, "hosted-") { // otherwise rank 0 hosts the coordinator
		c, err := coordinator.Publish(t.Context(), kv, store.Member{}, "", n, coordinator.ClientOptions{Host: "the test", HostRank: -1})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
	}
	w := make(workers, n)
	for rank := range w {
		w[rank] = testkit.Start(t, testkit.Self(t, "worker", kind, strconv.Itoa(rank), strconv.Itoa(n), server.Addr(), scenario))
	}
	return w
}

// workers are the processes of a scenario, by rank.
type workers []*testkit.Process

// said returns the rest of the line of a rank that begins with a word and a colon.
func (w workers) said(rank int, word string) string {
	return strings.TrimPrefix(w[rank].Await("^"+word+": ", 1).Text, word+": ")
}

// awaitRounds waits until every worker has run a call of ReduceRounds.
func (w workers) awaitRounds() {
	for _, p := range w {
		p.Await("^round$", 1)
	}
}
