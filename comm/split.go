package comm

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	"github.com/goddp/goddp/internal/awake"
	"github.com/goddp/goddp/internal/backend"
	"github.com/goddp/goddp/internal/coordinator"
	"github.com/goddp/goddp/internal/rootcause"
)

// Split divides the group into subgroups. All ranks must call it. The ranks with the same color
// form a new group, ordered by key, then by rank in this group. A rank that gives a negative color
// joins no group and gets nil.
//
// The new group uses the device of this group. Close of this group also closes
// the new group, unless the program has closed the new group before. The error is an
// [*failure.AbsentError] if some ranks did not call Split in time.
//
// A worker that replaces a lost one cannot ask the other ranks before it joins them. Split then forms its new group as if
// all ranks had given the same color and key.
func (pg *ProcessGroup) Split(ctx context.Context, color, key int) (*ProcessGroup, error) {
	pg.startMu.Lock()
	pg.splits++
	n := pg.splits
	pg.startMu.Unlock()
	choices, err := pg.exchange(ctx, []int64{int64(color), int64(key)})
	if err != nil {
		return nil, fmt.Errorf("rank %d: splitting the process group: %w", pg.world.Rank, err)
	}
	if color < 0 {
		return nil, nil
	}
	var members []int
	for r, c := range choices {
		if c[0] == int64(color) {
			members = append(members, r)
		}
	}
	slices.SortStableFunc(members, func(a, b int) int { return cmp.Compare(choices[a][1], choices[b][1]) })
	cfg := backend.Config{
		Rank: slices.Index(members, pg.rank), Size: len(members), Device: pg.dev, Timeout: pg.timeout, Log: pg.log,
	}
	name, ranks := fmt.Sprintf("%s/%d/%d", pg.name, n, color), make([]int, len(members))
	if len(pg.control.Members) < pg.size { // this process is alone: see pending
		ranks = slices.Clone(pg.control.Members)
	} else {
		for i, m := range members {
			ranks[i] = pg.control.Members[m]
		}
	}
	be, err := pg.makeSplit(ctx, name, ranks, &cfg, members)
	if err != nil {
		return nil, fmt.Errorf("rank %d: splitting the process group: color %d, %s: %w", pg.world.Rank, color, rootcause.Ranks(ranks), err)
	}
	sub := &ProcessGroup{handle: &handle{group: newGroup(pg.main, name, pg.world, cfg, be, pg.watchdog, pg.wrapBackend)}}
	sub.parent, sub.stop = pg.group, pg.stop
	pg.childMu.Lock()
	pg.children = append(pg.children, sub)
	pg.childMu.Unlock()
	return sub, nil
}

// makeSplit creates the backend of a subgroup. ranks holds the members' global ranks, members their
// ranks in this group.
func (pg *ProcessGroup) makeSplit(ctx context.Context, name string, ranks []int, cfg *backend.Config, members []int) (backend.Backend, error) {
	making, cancel := awake.WithTimeoutCause(ctx, pg.timeout, fmt.Errorf("%w after %v", ErrTimeout, pg.timeout))
	defer cancel()
	control, _, err := pg.control.Make(making, name, ranks, nil)
	if err != nil {
		return nil, backend.GiveUp(control, err)
	}
	cfg.Control = control
	be, err := pg.backend.Split(making, *cfg, members)
	if err != nil {
		return nil, err
	}
	if _, err := control.Gather(making, coordinator.ReadyKey, nil); err != nil {
		be.Close(context.WithoutCancel(making))
		return nil, backend.GiveUp(control, err)
	}
	return be, nil
}
