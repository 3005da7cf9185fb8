package comm

import (
	"context"

	"github.com/goddp/goddp/comm/failure"
	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/internal/backend"
)

// pending is the backend of a process that replaces a lost one, until Reconfigure makes it a member of the job. Its rank
// and size are those of the place that it was started for, but it is alone: gathers and broadcasts act as if all
// ranks had given the same. So the program makes its model, its data and its schedules as the other ranks did.
type pending struct {
	backend.Backend // of a group of one rank
	rank, size      int
}

// Start starts the calls that a program makes before it trains. Others fail.
func (p *pending) Start(c *backend.Call) (backend.Task, error) {
	calls, err := p.translate(nil, c)
	if err != nil {
		return nil, err
	}
	mine := *c
	if len(calls) == 0 {
		mine.Kind = backend.Barrier
		return p.Backend.Start(&mine)
	}
	mine.Kind, mine.Calls, mine.Dst, mine.Src, mine.Counts, mine.Root = backend.Group, calls, device.Tensor{}, device.Tensor{}, nil, 0
	return p.Backend.Start(&mine)
}

// Split makes the backend of a subgroup, in which this process is alone too.
func (p *pending) Split(ctx context.Context, cfg backend.Config, _ []int) (backend.Backend, error) {
	rank, size := cfg.Rank, cfg.Size
	cfg.Rank, cfg.Size = 0, 1
	be, err := p.Backend.Split(ctx, cfg, []int{0})
	if err != nil {
		return nil, err
	}
	return &pending{be, rank, size}, nil
}

// translate appends the calls of the group of one rank that do what c does.
func (p *pending) translate(to []*backend.Call, c *backend.Call) (_ []*backend.Call, err error) {
	switch c.Kind {
	case backend.Group:
		for _, part := range c.Calls {
			if to, err = p.translate(to, part); err != nil {
				return nil, err
			}
		}
		return to, nil
	case backend.AllGather:
		at := 0
		for r := range p.size {
			n := c.Src.Len()
			if c.Counts != nil {
				n = c.Counts[r]
			}
			if n > 0 {
				part := *c
				part.Counts, part.Src, part.Dst = nil, c.Src.Flat().Range(0, min(n, c.Src.Len())), c.Dst.Flat().Range(at, at+n)
				if n > c.Src.Len() {
					return nil, p.refuse(c)
				}
				to = append(to, &part)
			}
			at += n
		}
		return to, nil
	case backend.Broadcast:
		part := *c
		if part.Src.IsZero() {
			part.Src = part.Dst
		}
		part.Root = 0
		return append(to, &part), nil
	case backend.Barrier:
		part := *c
		return append(to, &part), nil
	}
	return nil, p.refuse(c)
}

func (p *pending) refuse(c *backend.Call) error {
	return &failure.UsageError{Rank: p.rank, Call: c.String(), Msg: "this process replaces a lost one, and joins the job in elastic.Run or train.Run: until then it can only gather, broadcast and wait at barriers"}
}
