// Package job is the training job of the survival campaign. Its workers run it in processes that are killed. The
// judge repeats it undisturbed, with the same members at each step.
package job

import (
	"context"
	"crypto/sha256"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"

	"github.com/goddp/goddp/autograd"
	"github.com/goddp/goddp/checkpoint"
	"github.com/goddp/goddp/comm"
	"github.com/goddp/goddp/data"
	"github.com/goddp/goddp/ddp"
	"github.com/goddp/goddp/ddp/zero"
	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/metrics"
	"github.com/goddp/goddp/nn"
	"github.com/goddp/goddp/optim"
)

const (
	samples, width, classes = 4000, 32, 10
	evaluateEvery           = 10
	saveEvery               = 15
)

// Options are the options of a job.
type Options struct {
	BFloat16 bool // the parameters are bfloat16, with masters; only on a GPU
	Captured bool // steps are captured
	Zero     bool // the optimizer's state is divided among the ranks
	Copies   bool // with Zero, each rank keeps a copy of another one's shards
}

// Define defines the command-line flags that set the options.
func (o *Options) Define() {
	flag.BoolVar(&o.BFloat16, "bf16", false, "train in bfloat16, on a GPU")
	flag.BoolVar(&o.Captured, "captured", false, "capture steps, on a GPU")
	flag.BoolVar(&o.Zero, "zero", false, "divide the optimizer's state among the ranks (ddp/zero)")
	flag.BoolVar(&o.Copies, "copies", true, "with -zero, keep copies of the shards")
}

// Args returns the command line that sets the options.
func (o Options) Args() []string {
	return []string{fmt.Sprintf("-bf16=%v", o.BFloat16), fmt.Sprintf("-captured=%v", o.Captured), fmt.Sprintf("-zero=%v", o.Zero), fmt.Sprintf("-copies=%v", o.Copies)}
}

// Job is a small model with everything that a step changes: buffers, random numbers, an optimizer's state.
type Job struct {
	o      Options
	pg     *comm.ProcessGroup
	Model  *ddp.Model
	Opt    optim.Optimizer
	Loader *data.Loader
	eval   *data.Loader
	gather func(ctx context.Context, visit func(name string, whole device.Tensor) error) error // of a divided state; nil: the state is whole
	// Phase and Committed, if they are set, are called when a phase begins, and after each step.
	Phase     func(Phase)
	Committed func(step int, loss float32)
}

// New makes the job of one rank of pg.
func New(pg *comm.ProcessGroup, o Options) (*Job, error) {
	j := &Job{o: o, pg: pg, Phase: func(Phase) {}, Committed: func(int, float32) {}}
	set := data.Each(samples, []data.Field{{DType: device.Float32, Shape: device.Shape{width}}, {DType: device.Int64}}, func(i int, dst []device.Tensor) error {
		random := rand.New(rand.NewPCG(uint64(i), 1))
		label := i % classes
		for k, x := 0, device.Elements[float32](dst[0]); k < width; k++ {
			x[k] = float32(random.NormFloat64())
			if k%classes == label {
				x[k]++
			}
		}
		device.Elements[int64](dst[1])[0] = int64(label)
		return nil
	})
	var err error
	if j.Loader, err = data.NewLoader(set, pg, &data.LoaderOptions{Batch: 12, Shuffle: true, LastBatch: data.Drop}); err != nil {
		return nil, err
	}
	if j.eval, err = data.NewLoader(set, pg, &data.LoaderOptions{Batch: 250, LastBatch: data.Uneven}); err != nil {
		return nil, err
	}
	net := nn.Sequential(nn.Linear(width, 128, nil), nn.BatchNorm1d(128, nil), nn.ReLU(), nn.Dropout(0.1), nn.Linear(128, 64, nil), nn.ReLU(), nn.Linear(64, classes, nil))
	if o.BFloat16 {
		if err := nn.Cast(net, device.BFloat16, nil); err != nil {
			return nil, err
		}
	}
	ddpOptions := ddp.Options{BucketCapMB: 0.01, FirstBucketCapMB: 0.01}
	adamW := func(params []*nn.Parameter) (*optim.AdamW, error) {
		return optim.NewAdamW(params, &optim.AdamWOptions{LR: 1e-3, MasterWeights: o.BFloat16})
	}
	if o.Zero {
		model, opt, err := zero.New(net, pg, adamW, &zero.Options{Options: ddpOptions, CopyShards: o.Copies})
		if err != nil {
			return nil, err
		}
		j.Model, j.Opt, j.gather = model.Model, opt, opt.Gather
		return j, nil
	}
	if j.Model, err = ddp.New(net, pg, &ddpOptions); err != nil {
		return nil, err
	}
	j.Opt, err = adamW(j.Model.Parameters())
	return j, err
}

// State is what a step changes, except the position in the data and the random generator.
func (j *Job) State() checkpoint.State {
	return checkpoint.State{Model: j.Model, Optimizers: []optim.Optimizer{j.Opt}}
}

// Loop trains up to a step, or until the ranks are asked to stop. It saves checkpoints in a folder.
func (j *Job) Loop(ctx context.Context, folder string, until int) (err error) {
	saver, err := checkpoint.Open(ctx, j.pg, folder, &checkpoint.Options{Keep: 2})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, saver.Close()) }()
	train := func(in ...*autograd.Variable) (*autograd.Variable, error) {
		j.Phase(Forward)
		x := in[0]
		if j.o.BFloat16 {
			x = autograd.Cast(x, device.BFloat16)
		}
		loss := nn.CrossEntropyLoss(j.Model.Forward(x), in[1], nil)
		j.Phase(Backward)
		if err := loss.Backward(nil); err != nil {
			return nil, err
		}
		j.Phase(Optimizer)
		return loss, j.Opt.Step()
	}
	if j.o.Captured {
		train = autograd.Capture(j.pg.Device(), train, nil)
	}
	for step, epoch := 0, j.Loader.Position().Epoch; ; epoch++ {
		if step, _ = j.Opt.Committed(); step >= until {
			return nil
		}
		for b, err := range j.Loader.Epoch(ctx, epoch) {
			if err != nil {
				return err
			}
			loss, err := train(b.Vars...)
			if err != nil {
				return err
			}
			step++
			j.Committed(step, float32(loss.Item()))
			j.Opt.ZeroGrad()
			if step == until || j.Model.Stopping() {
				return nil
			}
			if step%evaluateEvery == 0 {
				j.Phase(Evaluation)
				if _, err := metrics.Accuracy(ctx, j.pg, j.Model, j.eval); err != nil {
					return err
				}
			}
			if step%saveEvery == 0 {
				j.Phase(Save)
				if err := saver.Save(ctx, step, j.State()); err != nil {
					return err
				}
			}
		}
	}
}

// Hash returns the hashes of the parameters, the buffers, the optimizer's state and the random generator. If the state
// is divided, all ranks call it.
func (j *Job) Hash(ctx context.Context) (string, error) {
	var parts [3]map[string][]byte
	for i := range parts {
		parts[i] = map[string][]byte{}
	}
	add := func(part int, name string, t device.Tensor) error {
		h := sha256.New()
		err := j.write(h, t)
		parts[part][name] = h.Sum(nil)
		return err
	}
	var err error
	for _, p := range j.Model.Parameters() {
		err = errors.Join(err, add(0, p.Name(), p.Var().Tensor()))
	}
	for _, b := range j.Model.Buffers() {
		err = errors.Join(err, add(1, b.Name(), b.Var().Tensor()))
	}
	gather := j.gather
	if gather == nil {
		gather = func(_ context.Context, visit func(name string, whole device.Tensor) error) error {
			kept, err := j.Opt.State()
			for _, b := range kept {
				err = errors.Join(err, visit(b.Name(), b.Var().Tensor()))
			}
			return err
		}
	}
	if err := errors.Join(err, gather(ctx, func(name string, whole device.Tensor) error { return add(2, name, whole) })); err != nil {
		return "", err
	}
	var text strings.Builder
	for _, hashes := range parts {
		h := sha256.New()
		for _, name := range slices.Sorted(maps.Keys(hashes)) {
			h.Write(hashes[name])
		}
		fmt.Fprintf(&text, "%x-", h.Sum(nil)[:4])
	}
	position, err := autograd.Generator(j.pg.Device()).MarshalJSON()
	fmt.Fprintf(&text, "%x", sha256.Sum256(position))
	return text.String()[:4*9-1], err
}

// write writes the elements of t to w.
func (j *Job) write(w io.Writer, t device.Tensor) error {
	bytes, dev := t.Buf.Slice(0, t.Bytes()), j.pg.Device()
	if bytes.Host() == nil {
		host, err := dev.AllocHost(t.Bytes())
		if err != nil {
			return err
		}
		defer dev.Free(host)
		if err := errors.Join(dev.Copy(dev.Compute(), host, bytes), dev.Compute().Sync(j.pg.Context())); err != nil {
			return err
		}
		bytes = host
	}
	_, err := w.Write(bytes.Host()[:t.Bytes()])
	return err
}
