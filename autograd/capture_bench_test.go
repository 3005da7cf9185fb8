//go:build cgo && linux

package autograd_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/goddp/goddp/autograd"
	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/device/cuda"
	"github.com/goddp/goddp/nn"
	"github.com/goddp/goddp/optim"
)

// BenchmarkCapture times steps in a row, as a training loop runs them, plain and captured.
func BenchmarkCapture(b *testing.B) {
	if n, err := cuda.Count(); n == 0 {
		b.Skip(err)
	}
	for _, model := range []struct{ layers, size, batch int }{{32, 512, 64}, {3, 4000, 1000}} {
		for _, precision := range []string{"fp32", "tf32", "bf16"} {
			for _, captured := range []bool{false, true} {
				b.Run(fmt.Sprintf("%dx%d/%s/captured=%v", model.layers, model.size, precision, captured), func(b *testing.B) {
					benchmarkSteps(b, model.layers, model.size, model.batch, precision, captured)
				})
			}
		}
	}
}

func benchmarkSteps(b *testing.B, layers, size, batch int, precision string, captured bool) {
	ok := func(err error) {
		b.Helper()
		if err != nil {
			b.Fatal(err)
		}
	}
	dev, err := cuda.Open(0, &cuda.Options{AllowTF32: precision == "tf32", TuneMatMul: true})
	ok(err)
	defer dev.Close()
	var parts []nn.Module
	for i := range layers {
		if i > 0 {
			parts = append(parts, nn.ReLU())
		}
		parts = append(parts, nn.Linear(size, size))
	}
	net := nn.Sequential(parts...)
	ok(nn.Place(net, dev, 1))
	dt := device.Float32
	if precision == "bf16" {
		dt = device.BFloat16
		ok(nn.Cast(net, dt))
	}
	opt, err := optim.NewSGD(net.Parameters(), &optim.SGDOptions{LR: 0.001})
	ok(err)
	data := make([]float32, batch*size)
	for i := range data {
		data[i] = float32(i%13)/13 - 0.5
	}
	x := autograd.Cast(autograd.FromSlice(dev, data, batch, size), dt).Retain()
	y := autograd.Cast(autograd.FromSlice(dev, data, batch, size), dt).Retain()
	step := func(in ...*autograd.Variable) (*autograd.Variable, error) {
		opt.ZeroGrad()
		loss := nn.MSELoss(net.Forward(in[0]), in[1])
		if err := loss.Backward(); err != nil {
			return nil, err
		}
		return loss, opt.Step()
	}
	if captured {
		step = autograd.Capture(dev, step, &autograd.CaptureOptions{Required: true})
	}
	run := func(n int) {
		for range n {
			x, y = y, x // so each step copies its inputs
			_, err := step(x, y)
			ok(err)
		}
	}
	run(15)
	ok(dev.Compute().Sync(b.Context()))
	const steps = 60
	for b.Loop() {
		start := time.Now()
		run(steps)
		host := time.Since(start)
		ok(dev.Compute().Sync(b.Context()))
		b.ReportMetric(float64(time.Since(start))/steps/1e6, "ms/step")
		b.ReportMetric(float64(host)/steps/1e6, "host-ms/step")
	}
	b.ReportMetric(float64(dev.Memory().Held())/(1<<20), "held-MiB")
	b.ReportMetric(0, "ns/op")
}
