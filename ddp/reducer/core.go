package reducer

import "fmt"

// core decides what the reducer does. It holds no tensor and does no
// communication: it is told events and answers with actions, which the
// reducer carries out in order.
//
// Invariants: launched <= len(pending); every bucket before launched has been
// launched in this pass; pending[b] counts the parameters of bucket b that are
// not final in this pass. The last bucket is launched by finish alone: its
// flags tell the other ranks of whatever went wrong anywhere in the pass.
type core struct {
	buckets [][]int // the parameters of each bucket
	home    []int   // the bucket of each parameter

	phase    phase
	pending  []int
	final    []bool // per parameter, in this pass
	launched int    // buckets launched in this pass
	actions  []action
}

type phase uint8

const (
	idle         phase = iota
	accumulating       // within a pass that does not reduce
	reducing           // within a pass that does
)

func (p phase) String() string { return [...]string{"idle", "accumulating", "reducing"}[p] }

// event is something the engine tells.
type event struct {
	kind   eventKind
	param  int  // of ready
	sync   bool // of begin
	failed bool // of finish: the pass was cut short
}

type eventKind uint8

const (
	begin  eventKind = iota // a backward pass starts
	ready                   // a gradient is final
	finish                  // the pass is over
)

// action is something the reducer has to do.
type action struct {
	kind   actionKind
	bucket int // of launch
	param  int // of lack
}

type actionKind uint8

const (
	launch actionKind = iota // start the bucket's reduction
	lack                     // gradient param is missing
	flag                     // raise this rank's flag
)

func newCore(buckets [][]int, params int) *core {
	c := &core{buckets: buckets, home: make([]int, params), pending: make([]int, len(buckets)), final: make([]bool, params)}
	for b, ps := range buckets {
		for _, p := range ps {
			c.home[p] = b
		}
	}
	return c
}

// step takes an event. The actions are valid until the next step. An error is
// an engine's mistake, and changes nothing.
func (c *core) step(e event) ([]action, error) {
	c.actions = c.actions[:0]
	switch e.kind {
	case begin:
		if c.phase != idle {
			return nil, fmt.Errorf("a backward pass begins while another is %v", c.phase)
		}
		c.phase = accumulating
		if e.sync {
			c.phase = reducing
		}
		clear(c.final)
		for b, ps := range c.buckets {
			c.pending[b] = len(ps)
		}
		c.launched = 0
	case ready:
		switch {
		case c.phase == idle:
			return nil, fmt.Errorf("a gradient is ready outside a backward pass")
		case c.final[e.param]:
			return nil, errReadyTwice
		}
		c.final[e.param] = true
		c.pending[c.home[e.param]]--
		c.launchComplete()
	case finish:
		if c.phase == idle {
			return nil, fmt.Errorf("a backward pass is finished that has not begun")
		}
		if c.phase == reducing {
			c.launchRest(e.failed)
		}
		c.phase = idle
	}
	return c.actions, nil
}

// launchComplete launches complete buckets, up to the first that is not, or to
// the last.
func (c *core) launchComplete() {
	for c.phase == reducing && c.launched < len(c.buckets)-1 && c.pending[c.launched] == 0 {
		c.actions = append(c.actions, action{kind: launch, bucket: c.launched})
		c.launched++
	}
}

// launchRest launches what was not: before the last bucket the flag is raised,
// if anything is missing or the pass failed.
func (c *core) launchRest(failed bool) {
	for ; c.launched < len(c.buckets); c.launched++ {
		b := c.launched
		for _, p := range c.buckets[b] {
			if !c.final[p] {
				c.actions = append(c.actions, action{kind: lack, param: p})
				failed = true
			}
		}
		if failed && b == len(c.buckets)-1 {
			c.actions = append(c.actions, action{kind: flag})
		}
		c.actions = append(c.actions, action{kind: launch, bucket: b})
	}
}
