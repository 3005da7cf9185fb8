package amp

import (
	"errors"
	"slices"

	"github.com/goddp/goddp/autograd"
	"github.com/goddp/goddp/comm"
	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/internal/capture"
	"github.com/goddp/goddp/internal/kernels"
	"github.com/goddp/goddp/nn"
)

// overflowError is the error of a gradient that is not finite.
type overflowError struct{}

var errOverflow error = overflowError{}

func (overflowError) Error() string { return "amp: NaN or Inf in a gradient: the step is skipped" }

// Is makes errors.Is(err, device.ErrSkipped) true, because the updates on the device skip themselves.
func (overflowError) Is(target error) bool { return target == device.ErrSkipped }

// phase says which call an optimizer has had since the last Update.
type phase uint8

const (
	idle phase = iota
	unscaled
	stepped
)

func (p phase) String() string { return [...]string{"nothing", "Unscale", "Step"}[p] }

// check checks whether the gradients of one optimizer are finite.
type check struct {
	found     *autograd.Variable // one byte on the device, not 0 after an overflow; nil before the first scan
	hostFound device.Buffer      // a copy of found for the host; freed with the device

	phase    phase
	agreed   *comm.Work   // the all-reduce of found; nil without a group
	scanned  device.Event // the event after which hostFound is valid
	overflow bool         // the result for the current step

	capturing *capture.Step // the step that is being captured and has used the check; else nil
}

// scan enqueues a check of all gradients of all ranks of the group, and a copy of the result to the
// host. On a GPU it does not wait. It begins with the last parameters, whose gradients are reduced
// first.
func (c *check) scan(params []*nn.Parameter, group *comm.ProcessGroup) error {
	dev := params[0].Var().Device()
	if err := c.allocate(dev); err != nil {
		if group != nil && c.capturing == nil { // the other ranks would wait for this rank's byte
			group.Abort(err)
		}
		return err
	}
	k, s, found := kernels.Of(dev), dev.Compute(), c.found.Tensor()
	err := k.Fill(s, found, 0)
	for _, p := range slices.Backward(params) {
		if g := p.Grad(); g != nil {
			err = errors.Join(err, k.NonFinite(s, found, g.Tensor()))
		}
	}
	if group != nil { // even after an error: the other ranks wait for this rank
		c.agreed = group.With(&comm.CallOptions{Name: "overflow"}).AllReduce(found, comm.Max)
		err = errors.Join(err, c.agreed.Wait(group.Context()))
	}
	if err == nil {
		err = dev.Copy(s, c.hostFound, found.Buf)
	}
	c.scanned = s.Mark()
	if c.capturing != nil {
		agreed := c.agreed
		c.capturing.After(func(err error) error {
			if err == nil {
				c.agreed, c.scanned = agreed, s.Mark()
			}
			return nil
		})
	}
	return err
}

func (c *check) allocate(dev device.Device) (err error) {
	if c.found != nil {
		return nil
	}
	if c.capturing != nil {
		return c.capturing.NotYet("no step has checked the gradients of this optimizer")
	}
	found := autograd.Zeros(dev, device.Uint8, 1)
	if err := found.Err(); err != nil {
		return err
	}
	if c.hostFound, err = dev.AllocHost(1); err == nil {
		c.found = found
	}
	return err
}

// err returns errOverflow if the last scan found a gradient that is not finite. It waits for the scan
// without a deadline, because the work before it has its own deadlines.
func (c *check) err() error {
	if c.agreed != nil {
		if err := c.agreed.Sync(kernels.Unbounded); err != nil {
			return err
		}
	}
	if err := c.scanned.Sync(kernels.Unbounded); err != nil {
		return err
	}
	if c.hostFound.Host()[0] != 0 {
		return errOverflow
	}
	return nil
}

// settle stores the outcome of a step, or of an Unscale without a step, for Update. It returns err
// unless that is errOverflow.
func (c *check) settle(err error) error {
	c.overflow = errors.Is(err, errOverflow)
	if err != nil && !c.overflow {
		return err
	}
	c.phase = stepped
	return nil
}

// divide divides all gradients by the scale. A variable with several names is divided once.
func (c *check) divide(params []*nn.Parameter, s *Scaler) error {
	done := map[*autograd.Variable]bool{}
	for _, p := range params {
		if g := p.Grad(); g != nil && !done[g] {
			done[g] = true
			dev, t := p.Var().Device(), g.Tensor()
			var err error
			if c.capturing == nil {
				err = dev.Kernels().Axpby(dev.Compute(), t, device.Accum{Alpha: 1 / s.state.Scale}, t)
			} else if factor := s.scaleOnDevice(c.capturing, t.DType, true); factor.IsZero() {
				err = c.capturing.Refuse("Unscale of gradients of %v", t.DType)
			} else {
				err = kernels.Of(dev).Binary(dev.Compute(), kernels.Mul, t, t, factor)
			}
			if err != nil {
				return err
			}
		}
	}
	return nil
}
