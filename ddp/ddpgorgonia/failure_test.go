package ddpgorgonia

import (
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
	"github.com/goddp/goddp/comm/failure"
	"github.com/goddp/goddp/ddp/reducer"
	"github.com/goddp/goddp/internal/testkit"
	"github.com/goddp/goddp/internal/testkit/commtest"
)

// victimVar is an environment variable: the rank that dies.
const victimVar = "GODDP_TEST_VICTIM"

// victim is a hook that ends one rank's process when the second bucket of its third pass is
// reduced.
type victim struct {
	pg     *comm.ProcessGroup
	passes int
}

func (v *victim) Reduce(b reducer.GradBucket) reducer.Reduction {
	if b.Index == 1 && v.passes == 2 && strconv.Itoa(v.pg.Rank()) == os.Getenv(victimVar) {
		syscall.Kill(os.Getpid(), syscall.SIGKILL)
	}
	if b.Last {
		v.passes++
	}
	return v.pg.With(&comm.CallOptions{Name: b.Name, After: b.After}).AllReduce(b.Flat, b.Op)
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
			var lost *failure.PeerLostError
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
	commtest.OutsideJobs(t)
	testkit.Long(t)
	for mode, victim := range map[string]int{"GODDP_ASYNC_ERROR_HANDLING=1": 2, "GODDP_ASYNC_ERROR_HANDLING=2": 0, "GODDP_BLOCKING_WAIT=1": 0} { // rank 0 hosts the store
		t.Run(mode, func(t *testing.T) {
			dir := t.TempDir()
			for rank, p := range testkit.World(t, 3, func(int) *exec.Cmd {
				cmd := testkit.Self(t, "die")
				cmd.Env = append(cmd.Env, victimVar+"="+strconv.Itoa(victim), mode, "GODDP_DEVICE=cpu", "GODDP_FLIGHT_DIR="+dir)
				return cmd
			}) {
				code, out := p.Wait(), p.Stdout()
				if rank != victim && (code != 0 || out != fmt.Sprintf("rank %d lost\n", victim)) || strings.Contains(p.Stderr(), "panic") {
					t.Errorf("rank %d: exit code %d, and it prints %q\n%s", rank, code, out, p.Stderr())
				}
			}
		})
	}
}
