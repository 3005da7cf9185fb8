//go:build cgo && linux

package profile_test

import (
	"context"
	"errors"
	"math"
	"path/filepath"
	"testing"

	"github.com/goddp/goddp/autograd"
	"github.com/goddp/goddp/comm"
	"github.com/goddp/goddp/ddp"
	"github.com/goddp/goddp/ddp/reducer"
	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/internal/testkit/commtest"
	"github.com/goddp/goddp/internal/timeline"
	"github.com/goddp/goddp/nn"
	"github.com/goddp/goddp/profile"
)

// nccl_delay is a kernel of one thread, which leaves the rest of the GPU to the compute stream, as a
// collective does. By its name it counts as communication. It computes rounds sums that depend on each other.
var delay = device.NewModule("nccl_delay.cu", `
template <class T> __device__ void nccl_delay(T *x, i64 rounds) {
	typename Arith<T>::type v = up(x[0]);
	for (i64 i = 0; i < rounds; i++) v = v * 0.5f + 1;
	x[0] = down<T>(v);
}
`).Kernel("nccl_delay", "x[n]", func([]float32, int) {}, func([]float64, int) {})

const rounds = 200_000 // some 400 µs

// delays reduces a bucket by nccl_delay on a stream of its own.
type delays struct {
	stream device.Stream
	x      device.Tensor
}

func newDelays(dev device.Device) (*delays, error) {
	stream, err := dev.NewStream(true)
	if err != nil {
		return nil, err
	}
	buf, err := dev.Alloc(4)
	return &delays{stream, device.NewTensor(buf, device.Float32, 1)}, err
}

// delayed is a reduction that has been started.
type delayed struct {
	compute       device.Stream
	started, done device.Event
	err           error
}

func (d *delays) Reduce(b reducer.GradBucket) reducer.Reduction {
	dev, after := b.Group.Device(), b.After
	if after == nil {
		after = dev.Compute().Mark()
	}
	err := d.stream.WaitFor(after)
	started := d.stream.Record()
	err = errors.Join(err, dev.Kernels().Launch(d.stream, delay, device.Flat(1), d.x, rounds))
	return &delayed{dev.Compute(), started, d.stream.Record(), err}
}

func (d *delayed) Wait(ctx context.Context) error {
	return errors.Join(d.err, d.compute.WaitFor(d.done))
}
func (d *delayed) Sync(ctx context.Context) error         { return errors.Join(d.err, d.done.Sync(ctx)) }
func (d *delayed) Times() (started, ended profile.Moment) { return d.started, d.done }

// overlap records some steps on a GPU, after some that warm it up. It returns how many percent of the communication
// were hidden: by events, and by the kernels that CUPTI saw.
func overlap(t *testing.T, dev device.Device, step func() error) (byEvents, byKernels float64) {
	t.Helper()
	trace := profile.Of(dev)
	run := func(steps int) {
		for range steps {
			if err := errors.Join(step(), dev.Compute().Sync(t.Context())); err != nil {
				t.Fatal(err)
			}
		}
	}
	run(10)
	trace.Start()
	run(30)
	trace.Stop()
	path := filepath.Join(t.TempDir(), "trace.json")
	if err := trace.WriteFile(path, 0); err != nil {
		t.Fatal(err)
	}
	job, err := timeline.Read(path)
	if err != nil {
		t.Fatal(err)
	}
	report := job.Report()
	t.Logf("\n%s", report.Text(true))
	if report.Ranks[0].FromSpans {
		t.Fatal("there are no kernels in the trace")
	}
	return trace.Overlap().Percent(), report.Ranks[0].HiddenPercent
}

// agree checks that two percentages differ by 3 points at most, and that they measure something.
func agree(t *testing.T, what string, byEvents, byKernels float64) {
	t.Helper()
	t.Logf("%s: %.1f%% hidden by events, %.1f%% by kernels", what, byEvents, byKernels)
	if math.Abs(byEvents-byKernels) > 3 || byEvents < 20 || byEvents > 99 {
		t.Errorf("%s: %.1f%% of the communication is hidden by events, %.1f%% by kernels; want a difference of 3 at most, and 20%% to 99%%", what, byEvents, byKernels)
	}
}

// On a GPU, the overlap that package ddp measures by events is that of the kernels.
func TestGPUOverlapOfAModel(t *testing.T) {
	dev := commtest.OpenGPUs(t, 1, 1)[0]
	hook, err := newDelays(dev)
	if err != nil {
		t.Fatal(err)
	}
	commtest.OnDevices(t, []device.Device{dev}, nil, func(pg *comm.ProcessGroup) error {
		net := nn.Sequential(nn.Linear(4096, 4096, nil), nn.Linear(4096, 4096, nil), nn.Linear(4096, 4096, nil), nn.Linear(4096, 4096, nil))
		model, err := ddp.New(net, pg, &ddp.Options{BucketCapMB: 25, Hook: hook})
		if err != nil {
			return err
		}
		x := autograd.FromSlice(dev, make([]float32, 1024*4096), 1024, 4096)
		events, kernels := overlap(t, dev, func() error {
			loss := autograd.Mean(model.Forward(x))
			err := loss.Backward(nil)
			for _, p := range model.Parameters() {
				p.Var().ZeroGrad()
			}
			return err
		})
		agree(t, "a model's steps", events, kernels)
		return nil
	})
}
