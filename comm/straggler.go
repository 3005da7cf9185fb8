package comm

import (
	"context"
	"encoding/binary"
	"fmt"
	"log/slog"
	"math"
	"slices"
	"sync/atomic"
	"time"
)

// stragglerWindow is the number of collectives that are evaluated together.
const stragglerWindow = 256

// stragglers finds the rank that the other ranks of a group wait for. All ranks leave a
// collective at about the same time, so the rank with the shortest time in it joined last.
// Every rank posts its times in the collectives of a window to the coordinator, and rank 0
// compares them. Durations are compared rather than clock times, because the clocks of hosts
// differ.
type stragglers struct {
	group *group
	took  [2 * stragglerWindow]atomic.Int64 // times in the latest collectives: one window is filled while the one before is published
	full  atomic.Uint64                     // number of windows that are complete

	published uint64 // the latest window that was published; used by the watchdog's loop alone

	// Only rank 0 uses these. The watchdog's mu guards them.
	total  []time.Duration // by rank: how long the rank made the other ranks wait
	judged int             // number of collectives counted
}

// note records how long a collective ran on this rank.
func (l *stragglers) note(seq uint64, took time.Duration) {
	l.took[(seq-1)%uint64(len(l.took))].Store(int64(took))
	if seq%stragglerWindow == 0 {
		l.full.Store(seq / stragglerWindow)
		l.group.watchdog.poke()
	}
}

// publish posts the latest complete window to the coordinator, unless it was posted before. On
// rank 0 it then evaluates the window before, which all ranks have posted by now.
func (l *stragglers) publish(d *watchdogLoop) {
	window := l.full.Load()
	if window == l.published {
		return
	}
	l.published = window
	mine := binary.LittleEndian.AppendUint64(nil, window)
	for i := range uint64(stragglerWindow) {
		mine = binary.LittleEndian.AppendUint64(mine, uint64(l.took[((window-1)*stragglerWindow+i)%uint64(len(l.took))].Load()))
	}
	d.wg.Go(func() {
		ctx, cancel := context.WithTimeout(d.ctx, announceTime)
		defer cancel()
		if err := l.group.control.Post(ctx, stragglerKey(window), mine); err != nil {
			d.logf(slog.LevelDebug, "[Rank %d] posting the times of collectives: %v", d.world.Rank, err)
		}
		if l.group.rank == 0 && window > 1 {
			l.judge(d, window-1)
		}
	})
}

// stragglerKey returns the coordinator's key of a window. There are two keys, so a window
// replaces the last but one.
func stragglerKey(window uint64) string { return fmt.Sprintf("straggler/%d", window%2) }

// judge compares the ranks' times in a window and logs the rank that held the others up.
func (l *stragglers) judge(d *watchdogLoop, window uint64) {
	ctx, cancel := context.WithTimeout(d.ctx, announceTime)
	defer cancel()
	took, err := l.group.control.Posted(ctx, stragglerKey(window), l.group.control.Members)
	if err != nil {
		d.logf(slog.LevelDebug, "[Rank %d] comparing the times of collectives: %v", d.world.Rank, err)
		return
	}
	for r, t := range took {
		if len(t) != 8+8*stragglerWindow || binary.LittleEndian.Uint64(t) != window {
			d.logf(slog.LevelDebug, "[Rank %d] comparing the times of collectives: rank %d has not posted window %d", d.world.Rank, l.group.control.Members[r], window)
			return
		}
		took[r] = t[8:]
	}
	held, last := compareStragglers(took)
	slowest := slices.Index(held, slices.Max(held))
	d.logf(slog.LevelInfo, "[Rank %d] group %s, collectives %d to %d: rank %d came last to %d of %d and held the others up for %.1f ms",
		d.world.Rank, l.group.name, (window-1)*stragglerWindow+1, window*stragglerWindow, l.group.control.Members[slowest], last[slowest], stragglerWindow, held[slowest].Seconds()*1e3)
	d.mu.Lock()
	defer d.mu.Unlock()
	for r, t := range held {
		l.total[r] += t
	}
	l.judged += stragglerWindow
}

// compareStragglers returns, for each rank, how long the others waited for that rank alone, and
// how often it joined last. took holds, for each rank, its times in the collectives of a window,
// in eight bytes each.
func compareStragglers(took [][]byte) (held []time.Duration, last []int) {
	held, last = make([]time.Duration, len(took)), make([]int, len(took))
	for i := 0; i < len(took[0]); i += 8 {
		latest, shortest, next := 0, int64(math.MaxInt64), int64(math.MaxInt64)
		for r, t := range took {
			switch n := int64(binary.LittleEndian.Uint64(t[i:])); {
			case n < shortest:
				latest, shortest, next = r, n, shortest
			case n < next:
				next = n
			}
		}
		held[latest] += time.Duration(next - shortest)
		last[latest]++
	}
	return held, last
}

// report logs the slowest rank of the whole life of the group. It is called when the watchdog's
// loop has ended.
func (l *stragglers) report(d *watchdogLoop) {
	if l.published > 0 {
		l.judge(d, l.published)
	}
	d.mu.Lock()
	total, judged := slices.Clone(l.total), l.judged
	d.mu.Unlock()
	if judged == 0 {
		return
	}
	slowest := slices.Index(total, slices.Max(total))
	d.logf(slog.LevelInfo, "[Rank %d] group %s, %d collectives in %v: rank %d was the slowest and held the others up for %.1f ms",
		d.world.Rank, l.group.name, judged, time.Since(d.startTime).Round(time.Millisecond), l.group.control.Members[slowest], total[slowest].Seconds()*1e3)
}
