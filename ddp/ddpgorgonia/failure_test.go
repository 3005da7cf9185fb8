package ddpgorgonia

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"hash"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	G "gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"github.com/goddp/goddp/comm"
	"github.com/goddp/goddp/ddp/reducer"
	"github.com/goddp/goddp/internal/commtest"
	"github.com/goddp/goddp/internal/testkit"
)

// victim is a hook that ends one rank's process when the second bucket of its third pass is
// reduced.
type victim struct {
	pg     *comm.ProcessGroup
	passes int
}

func (v *victim) Reduce(b reducer.GradBucket) reducer.Reduction {
	if b.Index == 1 && v.passes == 2 && strconv.Itoa(v.pg.Rank()) == os.Getenv("GODDP_TEST_VICTIM") {
		syscall.Kill(os.Getpid(), syscall.SIGKILL)
	}
	if b.Last {
		v.passes++
	}
	return v.pg.With(comm.CallOptions{Name: b.Name, After: b.After}).AllReduce(b.Flat, b.Op)
}

// long is an identity whose gradient takes a while, like that of a large layer.
type long struct {
	op
	back bool
}

// while is the duration of one gradient. Several layers together take longer than the half second
// for which a watchdog in asynchronous mode lets a process live after its group has failed; one
// layer takes much less.
const while = 200 * time.Millisecond

func (o *long) String() string        { return "long" }
func (o *long) WriteHash(h hash.Hash) { o.write(h, fmt.Sprint("long ", o.back)) }
func (o *long) Hashcode() uint32      { return o.hash(fmt.Sprint("long ", o.back)) }
func (o *long) DiffWRT(int) []bool    { return []bool{true} }

func (o *long) SymDiff(_ G.Nodes, _, grad *G.Node) (G.Nodes, error) {
	n, err := G.ApplyOp(&long{o.op, true}, grad)
	return G.Nodes{n}, err
}

func (o *long) Do(in ...G.Value) (G.Value, error) {
	if o.back && o.model.reducer.Stats().Passes == 3 {
		time.Sleep(while)
	}
	return in[0], nil
}

// die trains until a rank dies in the middle of a step, and expects the typed error from RunAll.
func die(ctx context.Context) error {
	pg, err := comm.Init(ctx, nil)
	if err != nil {
		return err
	}
	defer pg.Close()
	n := newNetwork(tensor.Float32, 4, 0)
	m, err := New(pg, n.learnables, &Options{BucketCapMB: 1e-6, Hook: &victim{pg: pg}})
	if err != nil {
		return err
	}
	n.build(func(w *G.Node) *G.Node {
		return G.Must(G.ApplyOp(&long{op: op{model: m}}, m.Use(w)))
	})
	vm, err := m.NewTapeMachine(n.cost)
	if err != nil {
		return err
	}
	defer vm.Close()
	solver := G.NewVanillaSolver()
	for step := range 5 {
		if err := n.let(step, pg.Rank(), pg.Size()); err != nil {
			return err
		}
		if err := vm.RunAll(); err != nil {
			var lost *comm.PeerLostError
			if !errors.Is(err, comm.ErrPeerLost) || !errors.As(err, &lost) {
				return fmt.Errorf("got %w, want ErrPeerLost", err)
			}
			if strings.Count(err.Error(), "lost: its process ended") != 1 {
				return fmt.Errorf("got %q, which says it twice", err)
			}
			fmt.Printf("rank %d lost\n", lost.Peer)
			return nil
		}
		if err := solver.Step(G.NodesToValueGrads(n.learnables)); err != nil {
			return err
		}
		vm.Reset()
	}
	return errors.New("nobody died")
}

// If a peer dies in the middle of a step, RunAll returns a typed error in every error mode, and no
// process panics.
func TestPeerDeathIsTypedErrorOfRunAll(t *testing.T) {
	if commtest.InJob() {
		t.Skip("it starts processes of its own")
	}
	for mode, victims := range map[string][]int{"GODDP_ASYNC_ERROR_HANDLING=1": {0, 2}, "GODDP_ASYNC_ERROR_HANDLING=2": {0}, "GODDP_BLOCKING_WAIT=1": {0}} {
		for _, victim := range victims { // rank 0 hosts the store
			t.Run(fmt.Sprint(mode, "/", victim), func(t *testing.T) {
				port, _ := testkit.Port(t)
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				defer cancel()
				var ps [3]*exec.Cmd
				var out, errs [3]bytes.Buffer
				for r := range ps {
					p := exec.CommandContext(ctx, os.Args[0])
					p.Env = append(os.Environ(), workerMode+"=die", fmt.Sprint("GODDP_TEST_VICTIM=", victim), mode, "GODDP_DEVICE=cpu", "GODDP_FLIGHT_DIR="+t.TempDir(),
						fmt.Sprint("RANK=", r), "WORLD_SIZE=3", "MASTER_ADDR=127.0.0.1", fmt.Sprint("MASTER_PORT=", port))
					p.Stdout, p.Stderr = &out[r], &errs[r]
					if err := p.Start(); err != nil {
						t.Fatal(err)
					}
					ps[r] = p
				}
				for r, p := range ps {
					err := p.Wait()
					switch {
					case r == victim:
					case err != nil:
						t.Errorf("rank %d: %v\n%s", r, err, &errs[r])
					case out[r].String() != fmt.Sprintf("rank %d lost\n", victim):
						t.Errorf("rank %d printed %q", r, &out[r])
					}
					if strings.Contains(errs[r].String(), "panic") {
						t.Errorf("rank %d:\n%s", r, &errs[r])
					}
				}
			})
		}
	}
}
