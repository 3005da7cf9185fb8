package ddp_test

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/goddp/goddp/amp"
	"github.com/goddp/goddp/checkpoint"
	"github.com/goddp/goddp/comm"
	"github.com/goddp/goddp/ddp"
	"github.com/goddp/goddp/ddp/commhook"
	"github.com/goddp/goddp/ddp/ddpgorgonia"
	"github.com/goddp/goddp/ddp/internal/buckets"
	"github.com/goddp/goddp/ddp/zero"
	"github.com/goddp/goddp/internal/testkit/must"
	"github.com/goddp/goddp/nn"
	"github.com/goddp/goddp/optim"
	"github.com/goddp/goddp/train"
)

// Functions that take a process group return ErrNoGroup for nil.
func TestNilGroupReturnsErrNoGroup(t *testing.T) {
	net := nn.Linear(2, 2, nil)
	sgd := func(params []*nn.Parameter) (*optim.SGD, error) { return optim.NewSGD(params, nil) }
	dir := t.TempDir()
	for name, f := range map[string]func() error{
		"ddp.New":  func() error { _, err := ddp.New(net, nil, nil); return err },
		"zero.New": func() error { _, _, err := zero.New(net, nil, sgd, nil); return err },
		"ddp.Lockstep": func() error {
			for _, err := range ddp.Lockstep(nil, slices.Values([]int{1})) {
				return err
			}
			return nil
		},
		"engine.Verify":    func() error { return buckets.Verify(t.Context(), nil) },
		"ddpgorgonia.New":  func() error { _, err := ddpgorgonia.New(nil, nil, nil); return err },
		"Averager.Step":    func() error { return commhook.NewAverager(nil, nil).Step(t.Context(), nil) },
		"amp.Scaler.Agree": func() error { return must.New(amp.NewScaler(nil)).Agree(t.Context(), nil) },
		"engine.New":       func() error { _, err := buckets.New(t.Context(), nil, nil, nil); return err },
		"checkpoint.Open":  func() error { _, err := checkpoint.Open(t.Context(), nil, dir, nil); return err },
		"train.Run":        func() error { return train.Run(t.Context(), nil, nil) },
	} {
		if err := f(); !errors.Is(err, comm.ErrNoGroup) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: %v", name, err)
		}
	}
}
