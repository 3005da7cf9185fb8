package buckets

import (
	"errors"
	"fmt"
)

var (
	errReadyTwice  = errors.New("ready twice in one backward pass")
	errReadyUnused = errors.New("ready in a backward pass in which it was marked as unused")
)

// core makes the reducer's decisions. It holds no tensors and does not communicate. The reducer
// passes events to the core, and carries out the actions that the core returns, in order.
//
// Invariants: launched <= len(pending). The first `launched` buckets were launched in this pass.
// pending[b] is the number of parameters of bucket b whose gradients are not final in this pass. The last
// bucket is launched by the event finish alone. The flags, by which each rank tells the others about errors
// in the pass, are reduced together with the last bucket or directly before it.
type core struct {
	buckets  [][]int // the parameters of each bucket
	home     []int   // by parameter: the index of its bucket
	isStatic bool    // the graph is static: every pass must use the same parameters as the first successful pass
	reorder  bool    // rank 0 sends the order of its gradients after each pass that reduces

	phase      phase
	pending    []int
	final      []bool // per parameter: it is ready or unused in this pass
	unused     []bool // per parameter: this pass does not use it
	launched   int    // the number of buckets launched in this pass
	order      []int  // the parameters that became ready in this pass, in the order in which they became ready
	usual      []bool // with isStatic, per parameter: the first successful pass used it; nil before that pass
	hasChanged bool   // with isStatic: this pass uses other parameters than the first successful pass
	shadow     bool   // this rank makes this pass as a shadow pass: it has no gradients
	actions    []action
}

// phase says whether a backward pass is under way, and whether it reduces.
type phase uint8

const (
	idle         phase = iota
	accumulating       // within a pass that does not reduce
	reducing           // within a pass that reduces
)

func (p phase) String() string { return [...]string{"idle", "accumulating", "reducing"}[p] }

// event is an event in a pass that the reducer reports to the core. Most fields are for one kind only.
type event struct {
	kind    eventKind
	param   int    // for ready: the parameter whose gradient is final
	sync    bool   // for begin: the pass reduces
	reached []bool // for begin, by parameter: the pass will use it; nil: it will use all
	shadow  bool   // for begin: the pass is a shadow pass
	failed  bool   // for finish: the pass failed on this rank
	stop    bool   // for finish: this rank must ask all ranks to stop
}

type eventKind uint8

const (
	begin   eventKind = iota // a backward pass starts
	ready                    // a gradient is final
	finish                   // the backward pass has ended
	succeed                  // the last finished pass succeeded on all ranks, and no rank made it as a shadow pass
)

// action is something that the core tells the reducer to do.
type action struct {
	kind   actionKind
	bucket int // for launch: the bucket
	param  int // for skipUnused, noteMissing, noteNewlyUsed and noteNoLongerUsed: the parameter
}

type actionKind uint8

const (
	launch           actionKind = iota // start the bucket's reduction
	skipUnused                         // prepare the gradient of param for the reduction: this rank's pass does not write it
	noteMissing                        // the gradient of param is missing
	noteNewlyUsed                      // a static graph changed: the pass uses param, the first successful pass did not
	noteNoLongerUsed                   // a static graph changed: the first successful pass used param, this pass does not
	setShadowFlag                      // tell the other ranks that this rank makes a shadow pass
	raiseFlag                          // raise this rank's flag: no rank must apply the step
	askToStop                          // ask all ranks to stop
	sendOrder                          // start the broadcast of the order in which rank 0's gradients became final
)

func newCore(buckets [][]int, params int) *core {
	c := &core{home: make([]int, params), final: make([]bool, params), unused: make([]bool, params)}
	c.rebuild(buckets)
	return c
}

// rebuild replaces the buckets. It must be called between two passes.
func (c *core) rebuild(buckets [][]int) {
	c.buckets, c.pending = buckets, make([]int, len(buckets))
	for b, ps := range buckets {
		for _, p := range ps {
			c.home[p] = b
		}
	}
}

// step processes an event and returns the actions, which are valid until the next call of step. If the
// event is a mistake of the engine, step returns an error and changes nothing.
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
			return nil, fmt.Errorf("Finish was called without Begin: no backward pass has started")
		}
		if c.phase == reducing {
			c.launchRest(e.failed || c.hasChanged, e.stop)
			if c.reorder {
				c.act(action{kind: sendOrder})
			}
		}
		c.phase = idle
	case succeed:
		if c.isStatic && c.usual == nil {
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
	c.launched, c.order, c.hasChanged, c.shadow = 0, c.order[:0], false, e.shadow
	if !e.sync {
		return
	}
	for p := range c.home {
		reached := !e.shadow && (e.reached == nil || e.reached[p])
		if !reached {
			c.unused[p], c.final[p] = true, true
			c.pending[c.home[p]]--
			c.act(action{kind: skipUnused, param: p})
		}
		if c.usual != nil && !e.shadow && c.usual[p] != reached {
			c.hasChanged = true
			kind := noteNoLongerUsed
			if reached {
				kind = noteNewlyUsed
			}
			c.act(action{kind: kind, param: p})
		}
	}
	c.launchComplete()
}

// launchComplete launches buckets in order of index until it finds a bucket that is not complete. It
// never launches the last bucket.
func (c *core) launchComplete() {
	for c.phase == reducing && c.launched < len(c.buckets)-1 && c.pending[c.launched] == 0 {
		c.act(action{kind: launch, bucket: c.launched})
		c.launched++
	}
}

// launchRest launches the remaining buckets. Before the last bucket it sets the shadow flag in a shadow
// pass, asks all ranks to stop if stop is true, and raises this rank's flag if failed is true or a
// gradient is missing.
func (c *core) launchRest(failed, stop bool) {
	for ; c.launched < len(c.buckets); c.launched++ {
		b := c.launched
		for _, p := range c.buckets[b] {
			if !c.final[p] {
				c.act(action{kind: noteMissing, param: p})
				failed = true
			}
		}
		last := b == len(c.buckets)-1
		if last && c.shadow {
			c.act(action{kind: setShadowFlag})
		}
		if last && stop {
			c.act(action{kind: askToStop})
		}
		if last && failed {
			c.act(action{kind: raiseFlag})
		}
		c.act(action{kind: launch, bucket: b})
	}
}

// knownOrder returns the parameters in the order in which they became ready in the last pass. The
// parameters that the last pass did not use are at the end. knownOrder returns nil if a gradient was
// missing in the last pass, or if the last pass was a shadow pass.
func (c *core) knownOrder() []int {
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
