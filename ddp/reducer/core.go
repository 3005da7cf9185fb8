package reducer

import "fmt"

// core decides what the reducer does. It holds no tensor and does no
// communication: it is told events and answers with actions, which the
// reducer carries out in order.
//
// Invariants: launched <= len(pending); every bucket before launched has been
// launched in this pass; pending[b] counts the parameters of bucket b that are
// not final in this pass. The last bucket is launched by finish alone: the flags
// that go with it, or just before it, tell the other ranks of whatever went wrong
// anywhere in the pass.
type core struct {
	buckets [][]int // the parameters of each bucket
	home    []int   // the bucket of each parameter
	static  bool    // the first pass that succeeds says which parameters all passes reach
	reorder bool    // rank 0's order is not known yet

	phase    phase
	pending  []int
	final    []bool // per parameter, in this pass: it was ready, or is unused
	unused   []bool // per parameter: this pass does not reach it
	launched int    // buckets launched in this pass
	order    []int  // the parameters that were ready in this pass, in that order
	usual    []bool // per parameter, of a static graph: passes reach it; nil before the first
	changed  bool   // this pass reaches others
	shadow   bool   // this pass is made for the other ranks' sake
	actions  []action
}

type phase uint8

const (
	idle         phase = iota
	accumulating       // within a pass that does not reduce
	reducing           // within a pass that does
)

func (p phase) String() string { return [...]string{"idle", "accumulating", "reducing"}[p] }

// event is something the engine tells, or the reducer about a pass.
type event struct {
	kind    eventKind
	param   int    // of ready
	sync    bool   // of begin
	reached []bool // of begin: the parameters that the pass will make ready; nil: all
	shadow  bool   // of begin: the pass has nothing to add, the other ranks' do
	failed  bool   // of finish: the pass was cut short
	stop    bool   // of finish: this rank was asked to stop
}

type eventKind uint8

const (
	begin   eventKind = iota // a backward pass starts
	ready                    // a gradient is final
	finish                   // the pass is over
	succeed                  // the pass that was finished last, which every rank made and reduced, succeeded on all
)

// action is something the reducer has to do.
type action struct {
	kind   actionKind
	bucket int // of launch
	param  int // of spare, lack, appear and vanish
}

type actionKind uint8

const (
	launch actionKind = iota // start the bucket's reduction
	spare                    // param is unused: its place in the bucket must add nothing of this pass
	lack                     // gradient param is missing
	appear                   // param is used, which a static graph did not
	vanish                   // param is not used, which a static graph did
	excuse                   // tell that this rank shadows the others
	flag                     // raise this rank's flag
	halt                     // ask all ranks to stop
	tell                     // rank 0: tell the order to all
)

func newCore(buckets [][]int, params int) *core {
	c := &core{home: make([]int, params), final: make([]bool, params), unused: make([]bool, params)}
	c.rebuild(buckets)
	return c
}

// rebuild puts the parameters into other buckets, between passes.
func (c *core) rebuild(buckets [][]int) {
	c.buckets, c.pending = buckets, make([]int, len(buckets))
	for b, ps := range buckets {
		for _, p := range ps {
			c.home[p] = b
		}
	}
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
		c.begin(e)
	case ready:
		switch {
		case c.phase == idle:
			return nil, fmt.Errorf("a gradient is ready outside a backward pass")
		case c.unused[e.param]:
			return nil, errReadyUnused
		case c.final[e.param]:
			return nil, errReadyTwice
		}
		c.final[e.param] = true
		c.pending[c.home[e.param]]--
		c.order = append(c.order, e.param)
		c.launchComplete()
	case finish:
		if c.phase == idle {
			return nil, fmt.Errorf("a backward pass is finished that has not begun")
		}
		if c.phase == reducing {
			c.launchRest(e.failed || c.changed, e.stop)
			if c.reorder {
				c.act(action{kind: tell})
			}
		}
		c.phase = idle
	case succeed:
		if c.static && c.usual == nil {
			c.usual = make([]bool, len(c.home))
			for p, unused := range c.unused {
				c.usual[p] = !unused
			}
		}
	}
	return c.actions, nil
}

func (c *core) act(a action) { c.actions = append(c.actions, a) }

func (c *core) begin(e event) {
	c.phase = accumulating
	if e.sync {
		c.phase = reducing
	}
	clear(c.final)
	clear(c.unused)
	for b, ps := range c.buckets {
		c.pending[b] = len(ps)
	}
	c.launched, c.order, c.changed, c.shadow = 0, c.order[:0], false, e.shadow
	if !e.sync {
		return
	}
	for p := range c.home {
		reached := !e.shadow && (e.reached == nil || e.reached[p])
		if !reached {
			c.unused[p], c.final[p] = true, true
			c.pending[c.home[p]]--
			c.act(action{kind: spare, param: p})
		}
		if c.usual != nil && !e.shadow && c.usual[p] != reached {
			c.changed = true
			kind := vanish
			if reached {
				kind = appear
			}
			c.act(action{kind: kind, param: p})
		}
	}
	c.launchComplete()
}

// launchComplete launches complete buckets, up to the first that is not, or to
// the last.
func (c *core) launchComplete() {
	for c.phase == reducing && c.launched < len(c.buckets)-1 && c.pending[c.launched] == 0 {
		c.act(action{kind: launch, bucket: c.launched})
		c.launched++
	}
}

// launchRest launches what was not: before the last bucket the other ranks are
// told that this one shadows them, or was asked to stop, and the flag is raised if
// anything is missing or the pass failed.
func (c *core) launchRest(failed, stop bool) {
	for ; c.launched < len(c.buckets); c.launched++ {
		b := c.launched
		for _, p := range c.buckets[b] {
			if !c.final[p] {
				c.act(action{kind: lack, param: p})
				failed = true
			}
		}
		last := b == len(c.buckets)-1
		if last && c.shadow {
			c.act(action{kind: excuse})
		}
		if last && stop {
			c.act(action{kind: halt})
		}
		if last && failed {
			c.act(action{kind: flag})
		}
		c.act(action{kind: launch, bucket: b})
	}
}

// known is the order in which parameters became ready in the pass that was
// finished last, with the unused ones behind in the order of the buckets; nil if
// one was missing, or if the pass was a shadow.
func (c *core) known() []int {
	if c.shadow {
		return nil
	}
	order := c.order
	for _, ps := range c.buckets {
		for _, p := range ps {
			if c.unused[p] {
				order = append(order, p)
			}
		}
	}
	if len(order) < len(c.home) {
		return nil
	}
	return order
}
