package ddp_test

import (
	"errors"
	"testing"

	"github.com/goddp/goddp/checkpoint"
	"github.com/goddp/goddp/comm"
	"github.com/goddp/goddp/ddp"
	"github.com/goddp/goddp/ddp/reducer"
	"github.com/goddp/goddp/ddp/zero"
	"github.com/goddp/goddp/internal/must"
	"github.com/goddp/goddp/nn"
	"github.com/goddp/goddp/optim"
	"github.com/goddp/goddp/train"
)

// What needs a process group says so where it is given none.
func TestNoGroup(t *testing.T) {
	net := nn.Linear(2, 2)
	sgd := func(params []*nn.Parameter) (*optim.SGD, error) { return optim.NewSGD(params, nil) }
	dir := t.TempDir()
	for name, f := range map[string]func() error{
		"ddp.New":         func() error { _, err := ddp.New(net, nil, nil); return err },
		"ddp.Recover":     func() error { _, err := ddp.Recover(net, nil, must.New(sgd(net.Parameters()))); return err },
		"zero.New":        func() error { _, _, err := zero.New(net, nil, sgd, nil); return err },
		"zero.Recover":    func() error { _, _, err := zero.Recover(net, nil, nil, sgd, nil); return err },
		"reducer.New":     func() error { _, err := reducer.New(t.Context(), nil, nil, nil); return err },
		"checkpoint.Open": func() error { _, err := checkpoint.Open(nil, dir, nil); return err },
		"train.Run":       func() error { return train.Run(t.Context(), nil, train.Config{}) },
	} {
		if err := f(); !errors.Is(err, comm.ErrNoGroup) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
