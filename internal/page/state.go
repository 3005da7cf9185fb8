package page

import (
	"maps"
	"slices"
	"time"

	"github.com/goddp/goddp/internal/telemetry"
)

// State is what the page shows beside the curves.
type State struct {
	Info
	Now        time.Time   `json:"now"`
	Status     string      `json:"status"`
	Ended      *time.Time  `json:"ended,omitempty"`
	WorldSize  int         `json:"world_size"`
	Restarts   int         `json:"restarts"`
	Step       int64       `json:"step"`
	Names      []string    `json:"names"`
	Parts      []string    `json:"parts"`
	Refused    int         `json:"refused,omitempty"`
	Latest     []Latest    `json:"latest"`
	Ranks      []RankState `json:"ranks"`
	Slow       *Slow       `json:"slow,omitempty"`
	Events     []Event     `json:"events"`
	Failure    string      `json:"failure,omitempty"`
	Culprits   []int       `json:"culprits"`
	Checkpoint *Saved      `json:"checkpoint,omitempty"`
	Dropped    uint64      `json:"dropped,omitempty"`
}

// Latest is the last point of a series of the lowest rank that has it.
type Latest struct {
	Name  string `json:"name"`
	Step  int64  `json:"step"`
	Value value  `json:"value"`
}

// Saved says when a checkpoint was durable.
type Saved struct {
	Step int64     `json:"step"`
	Time time.Time `json:"time"`
}

// RankState is what the page shows of a rank.
type RankState struct {
	Worker
	Step   int64            `json:"step"`
	Silent float64          `json:"silent"` // seconds since the last report; -1 before the first
	Parts  map[string]value `json:"parts"`
	GPU    *GPUState        `json:"gpu,omitempty"`
}

// GPUState is what the page shows of a rank's GPU.
type GPUState struct {
	Clock       value `json:"clock"`       // MHz
	Temperature value `json:"temperature"` // °C
	Power       value `json:"power"`       // W
}

// State returns the state.
func (r *Run) State() *State {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := r.now()
	s := &State{
		Info: r.info, Now: now, Status: r.status, WorldSize: r.worldSize, Restarts: r.restarts,
		Names: append([]string{}, slices.Sorted(maps.Keys(r.names))...), Parts: append([]string{}, r.sortedParts()...), Refused: len(r.refused), Checkpoint: r.checkpoint,
		Events: append([]Event{}, r.events...), Failure: r.failure, Culprits: append([]int{}, r.culprits...), Latest: []Latest{}, Ranks: []RankState{},
	}
	if !r.ended.IsZero() {
		s.Ended = &r.ended
	}
	paces, conditions := map[int]map[string]float64{}, conditions{}
	for _, n := range r.currentRanks() {
		w, isWorker := r.workers[n]
		k := r.ranks[n]
		w.Rank = n
		state := RankState{Worker: w, Silent: -1, Parts: map[string]value{}}
		if k != nil {
			state.Step = k.step
			if s.Step = max(s.Step, k.step); !k.at.IsZero() {
				state.Silent = now.Sub(k.at).Seconds()
			}
			s.Dropped += k.dropped
			p := k.pace.mean()
			if !isWorker || w.State == Running {
				paces[n] = p
				if c := k.condition; now.Sub(c.at) <= freshTime {
					conditions[n] = c.numbers
					if clock, isGPU := c.numbers[telemetry.GPUClock]; isGPU {
						state.GPU = &GPUState{value(clock), value(c.numbers[telemetry.GPUTemperature]), value(c.numbers[telemetry.GPUPower])}
					}
				}
			}
			for _, name := range s.Parts {
				if v, isMeasured := p[name]; isMeasured {
					state.Parts[name] = value(v)
				} else if last := r.series[key{telemetry.Times, name, n}]; p == nil && last != nil { // the run was loaded
					state.Parts[name] = value(last.latest)
				}
			}
		}
		s.Ranks = append(s.Ranks, state)
	}
	if r.status == Running {
		s.Slow = slowest(paces).explain(conditions)
	}
	for _, name := range s.Names {
		for _, n := range r.sortedRanks() {
			if last := r.series[key{telemetry.Values, name, n}]; last != nil {
				s.Latest = append(s.Latest, Latest{name, last.at, value(last.latest)})
				break
			}
		}
	}
	return s
}

// currentRanks returns the ranks of the current round, without those that are gone since the job has shrunk.
func (r *Run) currentRanks() []int {
	return slices.DeleteFunc(r.sortedRanks(), func(n int) bool {
		_, isWorker := r.workers[n]
		return !isWorker && r.worldSize > 0 && n >= r.worldSize
	})
}

// sortedRanks returns all ranks that the run knows.
func (r *Run) sortedRanks() []int {
	all := slices.Collect(maps.Keys(r.ranks))
	return slices.Compact(slices.Sorted(slices.Values(slices.AppendSeq(all, maps.Keys(r.workers)))))
}

// sortedParts returns the parts in the order in which a step makes them, and those of the program behind them.
func (r *Run) sortedParts() []string {
	own := []string{telemetry.Data, telemetry.Forward, telemetry.Backward, telemetry.Wait, telemetry.Optimizer, telemetry.Replay,
		telemetry.Log, telemetry.Evaluation, telemetry.Checkpoint, telemetry.Callback, telemetry.Other}
	place := func(name string) int {
		if i := slices.Index(own, name); i >= 0 {
			return i
		}
		return len(own)
	}
	parts := slices.Sorted(maps.Keys(r.parts))
	slices.SortStableFunc(parts, func(a, b string) int { return place(a) - place(b) })
	return parts
}
