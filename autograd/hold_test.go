package autograd_test

import (
	"errors"
	"testing"

	"github.com/goddp/goddp/autograd"
	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/device/cpu"
	"github.com/goddp/goddp/internal/gradsink"
	"github.com/goddp/goddp/internal/testkit/devicetest"
	"github.com/goddp/goddp/internal/testkit/must"
	"github.com/goddp/goddp/nn"
	"github.com/goddp/goddp/optim"
)

// An in-place write to memory that another stream reads waits for that read, and so does Free. Reads of
// that memory and writes to other memory do not wait.
func TestWritesWaitForReaders(t *testing.T) {
	for name, c := range map[string]struct {
		waits bool
		do    func(net nn.Module, opt *optim.SGD, other *autograd.Variable) error
	}{
		"forward and backward": {false, func(net nn.Module, _ *optim.SGD, other *autograd.Variable) error {
			return autograd.Sum(net.Forward(other)).Backward(nil)
		}},
		"a write to another": {false, func(_ nn.Module, _ *optim.SGD, other *autograd.Variable) error {
			other.BumpVersion()
			other.Free()
			return nil
		}},
		"step": {true, func(net nn.Module, opt *optim.SGD, other *autograd.Variable) error {
			return errors.Join(autograd.Sum(net.Forward(other)).Backward(nil), opt.Step())
		}},
		"LoadState": {true, func(net nn.Module, _ *optim.SGD, other *autograd.Variable) error {
			from := nn.Linear(3, 2, nil)
			return errors.Join(nn.Place(from, other.Device(), 2), nn.LoadState(t.Context(), net, nn.State(from)))
		}},
		"Free": {true, func(net nn.Module, _ *optim.SGD, _ *autograd.Variable) error {
			net.Parameters()[0].Var().Free()
			return nil
		}},
	} {
		t.Run(name, func(t *testing.T) {
			inner := cpu.New(&cpu.Options{Threads: 1})
			defer inner.Close()
			dev := devicetest.Defer(inner)
			net := nn.Linear(3, 2, nil)
			if err := nn.Place(net, dev, 1); err != nil {
				t.Fatal(err)
			}
			opt := must.New(optim.NewSGD(net.Parameters(), &optim.SGDOptions{LR: 0.1}))
			beside, err := dev.NewStream(false)
			if err != nil {
				t.Fatal(err)
			}
			v := net.Parameters()[0].Var()
			to, err := dev.AllocHost(v.Tensor().Bytes())
			if err != nil {
				t.Fatal(err)
			}
			want := device.Elements[float32](v.Tensor())[0]
			if err := dev.Copy(beside, to, v.Tensor().Buf); err != nil {
				t.Fatal(err)
			}
			read := beside.Mark()
			gradsink.HoldWrites(dev, []any{v}, read)
			if err := c.do(net, opt, autograd.FromSlice(dev, []float32{1, 2, 3}, 1, 3)); err != nil {
				t.Fatal(err)
			}
			if done, _ := read.Done(); done != c.waits {
				t.Errorf("the read has run: %v, want %v", done, c.waits)
			}
			if _, err := dev.Run(); err != nil {
				t.Fatal(err)
			}
			if got := device.Elements[float32](device.NewTensor(to, device.Float32, 2, 3))[0]; got != want {
				t.Errorf("read %v, want %v, as it was", got, want)
			}
		})
	}
}
