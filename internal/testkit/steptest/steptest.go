// Package steptest makes a few training steps of a language model, captured or not, so that a test can compare them.
package steptest

import (
	"context"
	"fmt"

	"github.com/goddp/goddp/autograd"
	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/nn"
)

// Steps is the number of steps that Run makes.
const Steps = 5

// Run calls step with inputs(0) to inputs(Steps-1), captured or not. It returns the losses, and then params, as bytes. A
// captured step has to run 3 times: twice before it is captured, and once to be captured.
func Run(ctx context.Context, params []*nn.Parameter, captured bool, inputs func(n int) []*autograd.Variable, step func(in ...*autograd.Variable) (*autograd.Variable, error)) (state []byte, err error) {
	runs := 0
	run := func(in ...*autograd.Variable) (*autograd.Variable, error) {
		runs++
		return step(in...)
	}
	if captured {
		run = autograd.Capture(params[0].Var().Device(), run, &autograd.CaptureOptions{Required: true})
	}
	for n := range Steps {
		loss, err := run(inputs(n)...)
		if err != nil {
			return nil, fmt.Errorf("step %d: %w", n, err)
		}
		state = fmt.Append(state, loss.Item(), " ")
	}
	if captured && runs != 3 {
		return nil, fmt.Errorf("the step ran %d times, want 3", runs)
	}
	for _, p := range params {
		b, err := p.Var().Bytes(ctx)
		if err != nil {
			return nil, err
		}
		state = append(state, b...)
	}
	return state, nil
}

// Tokens returns ids and the tokens that follow them, int64 [rows tokens]. They depend on seed.
func Tokens(dev device.Device, rows, tokens, vocab, seed int) (ids, next *autograd.Variable) {
	all := make([]int64, rows*tokens+1)
	for i := range all {
		all[i] = int64((i*i + seed) % vocab)
	}
	return autograd.FromSlice(dev, all[:rows*tokens], rows, tokens), autograd.FromSlice(dev, all[1:], rows, tokens)
}
