package amp

import (
	"context"
	"errors"
	"slices"

	"github.com/goddp/goddp/autograd"
	"github.com/goddp/goddp/comm"
	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/nn"
)

// overflowError says that a gradient is not finite.
type overflowError struct{}

var errOverflow error = overflowError{}

func (overflowError) Error() string { return "amp: NaN or Inf in a gradient: the step is skipped" }

// Is makes errors.Is(err, device.ErrSkipped) hold: the device knows as well.
func (overflowError) Is(target error) bool { return target == device.ErrSkipped }

// phase is how far an optimizer is between two Updates.
type phase uint8

const (
	idle phase = iota
	unscaled
	stepped
)

func (p phase) String() string { return [...]string{"nothing", "Unscale", "Step"}[p] }

// check looks whether one optimizer's gradients are finite.
type check struct {
	found *autograd.Variable // a byte on the device; nil before the first scan
	seen  device.Buffer      // where the host sees it: it goes with the device

	phase    phase
	agreed   *comm.Work   // makes found all ranks'; nil without a group
	scanned  device.Event // seen holds found then
	overflow bool         // of the step
}

// scan enqueues what finds out whether a gradient, on any rank of the group, is
// not finite, and shows it to the host. It does not wait on a GPU. It begins with the
// last parameters, whose gradients are there first.
func (c *check) scan(params []*nn.Parameter, group *comm.ProcessGroup) error {
	dev := params[0].Var().Device()
	if err := c.allocate(dev); err != nil {
		if group != nil { // the others wait for a byte that this rank does not have
			group.Abort(err)
		}
		return err
	}
	k, s, found := dev.Kernels(), dev.Compute(), c.found.Tensor()
	err := k.Fill(s, found, 0)
	for _, p := range slices.Backward(params) {
		if g := p.Grad(); g != nil {
			err = errors.Join(err, k.NonFinite(s, found, g.Tensor()))
		}
	}
	if group != nil { // whatever failed here, the others wait for it
		c.agreed = group.With(comm.CallOptions{Name: "overflow"}).AllReduce(found, comm.Max)
		err = errors.Join(err, c.agreed.Wait(context.Background())) // it has a deadline of its own
	}
	if err == nil {
		err = dev.Copy(s, c.seen, found.Buf)
	}
	c.scanned = s.Mark()
	return err
}

func (c *check) allocate(dev device.Device) (err error) {
	if c.found != nil {
		return nil
	}
	found := autograd.Zeros(dev, device.Uint8, 1)
	if err := found.Err(); err != nil {
		return err
	}
	if c.seen, err = dev.AllocHost(1); err == nil {
		c.found = found
	}
	return err
}

// err is errOverflow if the last scan found something. It waits for the scan,
// which is behind work that has deadlines of its own.
func (c *check) err() error {
	ctx := context.Background()
	if c.agreed != nil {
		if err := c.agreed.Sync(ctx); err != nil {
			return err
		}
	}
	if err := c.scanned.Sync(ctx); err != nil {
		return err
	}
	if c.seen.Host()[0] != 0 {
		return errOverflow
	}
	return nil
}

// settle makes the outcome of a step, or of the scan alone, what Update looks at. An
// error other than of the overflow is none.
func (c *check) settle(err error) error {
	c.overflow = errors.Is(err, errOverflow)
	if err != nil && !c.overflow {
		return err
	}
	c.phase = stepped
	return nil
}

// divide divides the gradients, that of a variable under several names once.
func (c *check) divide(params []*nn.Parameter, by float64) error {
	done := map[*autograd.Variable]bool{}
	for _, p := range params {
		if g := p.Grad(); g != nil && !done[g] {
			done[g] = true
			dev, t := p.Var().Device(), g.Tensor()
			if err := dev.Kernels().Axpby(dev.Compute(), t, device.Accum{Alpha: 1 / by}, t); err != nil {
				return err
			}
		}
	}
	return nil
}
