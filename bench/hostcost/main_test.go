//go:build cgo && linux

package main

import (
	"bytes"
	"errors"
	"testing"

	"github.com/goddp/goddp/comm"
	"github.com/goddp/goddp/internal/testkit/commtest"
)

// C enqueues what goddp enqueues: a step and two in C end with the parameters of three steps, bit for bit.
func TestEmulatedCMakesTheSameSteps(t *testing.T) {
	*size, *batch, *layers, *bucket = 16, 4, 3, 0.001
	// Without the delays, in microseconds, an all-reduce could end before the step enqueues the wait for it. The
	// list would lack that wait.
	devices := commtest.FakeGPUs(t, 1, "delay 1000")
	run := func(stepsOfC int) (state []byte) {
		commtest.OnDevices(t, devices, nil, func(pg *comm.ProcessGroup) error {
			model, step, err := trainer(pg)
			if err != nil {
				return err
			}
			for range 2 - stepsOfC {
				if err := step(); err != nil {
					return err
				}
			}
			if err := list(t.Context(), pg.Device(), step); err != nil {
				return err
			}
			if stepsOfC > 0 {
				if _, err := inC(stepsOfC, nil); err != nil {
					return err
				}
			}
			for _, p := range model.Parameters() {
				b, e := p.Var().Bytes(t.Context())
				state, err = append(state, b...), errors.Join(err, e)
			}
			return err
		})
		return state
	}
	want := run(0)
	if one := run(1); !bytes.Equal(one, want) {
		t.Error("two steps of goddp and one in C do not end with the parameters of three steps")
	}
	if two := run(2); !bytes.Equal(two, want) {
		t.Error("one step of goddp and two in C do not end with the parameters of three steps")
	}
}
