package reducer

import "fmt"

// core makes the reducer's decisions. It holds no tensors and does not communicate. The reducer
// passes it events, and carries out the actions that it returns, in order.
//
// Invariants: launched <= len(pending). All buckets before launched were launched in this pass.
// pending[b] is the number of parameters of bucket b that are not final in this pass. Only finish
// launches the last bucket: the flags travel with that bucket, or just before it, and tell the other
// ranks what went wrong anywhere in the pass.
type core struct {
	buckets [][]int // the parameters of each bucket
	home    []int   // the bucket of each parameter
	static  bool    // the first successful pass determines which parameters all passes use
	reorder bool    // rank 0 still has to send the order of its gradients

	phase    phase
	pending  []int
	final    []bool // per parameter, in this pass: it is ready, or unused
	unused   []bool // per parameter: this pass does not use it
	launched int    // the number of buckets launched in this pass
	order    []int  // the parameters that became ready in this pass, in that order
	usual    []bool // per parameter of a static graph: passes use it; nil before the first successful pass
	changed  bool   // this pass of a static graph uses other parameters than usual
	shadow   bool   // this rank makes this pass only because others make it
	actions  []action
}

// phase says whether a pass is under way.
type phase uint8

const (
	idle         phase = iota
	accumulating       // within a pass that does not reduce
	reducing           // within a pass that reduces
)

func (p phase) String() string { return [...]string{"idle", "accumulating", "reducing"}[p] }

// event is what happens in a pass. The engine or the reducer reports it to the core.
type event struct {
	kind    eventKind
	param   int    // of ready
	sync    bool   // of begin: the pass reduces
	reached []bool // of begin: the parameters that the pass will use; nil: all
	shadow  bool   // of begin: only other ranks compute gradients in this pass
	failed  bool   // of finish: the pass was cut short
	stop    bool   // of finish: this rank was asked to stop
}

type eventKind uint8

const (
	begin   eventKind = iota // a backward pass starts
	ready                    // a gradient is final
	finish                   // the backward pass has ended
	succeed                  // the pass that was finished last was made by all ranks, and succeeded on all
)

// action is what the reducer has to do.
type action struct {
	kind   actionKind
	bucket int // of launch
	param  int // of skipUnused, noteMissing, noteNewlyUsed and noteNoLongerUsed
}

type actionKind uint8

const (
	launch           actionKind = iota // start the bucket's reduction
	skipUnused                         // param is unused: this pass must add nothing to its gradient
	noteMissing                        // the gradient of param is missing
	noteNewlyUsed                      // the pass uses param, and the static graph did not
	noteNoLongerUsed                   // the pass does not use param, and the static graph did
	setShadowFlag                      // tell the other ranks that this rank makes a shadow pass
	raiseFlag                          // raise this rank's flag
	askToStop                          // ask all ranks to stop
	sendOrder                          // rank 0 sends its order of gradients to all ranks
)

func newCore(buckets [][]int, params int) *core {
	c := &core{home: make([]int, params), final: make([]bool, params), unused: make([]bool, params)}
	c.rebuild(buckets)
	return c
}

// rebuild replaces the buckets. It is called between two passes.
func (c *core) rebuild(buckets [][]int) {
	c.buckets, c.pending = buckets, make([]int, len(buckets))
	for b, ps := range buckets {
		for _, p := range ps {
			c.home[p] = b
		}
	}
}

// step processes an event and returns the actions, which are valid until the next step. If the engine
// made a mistake, step returns an error and changes nothing.
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
			return nil, fmt.Errorf("a backward pass is finished that has not started")
		}
		if c.phase == reducing {
			c.launchRest(e.failed || c.changed, e.stop)
			if c.reorder {
				c.act(action{kind: sendOrder})
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
			c.act(action{kind: skipUnused, param: p})
		}
		if c.usual != nil && !e.shadow && c.usual[p] != reached {
			c.changed = true
			kind := noteNoLongerUsed
			if reached {
				kind = noteNewlyUsed
			}
			c.act(action{kind: kind, param: p})
		}
	}
	c.launchComplete()
}

// launchComplete launches buckets in order of index until one is not complete. It never launches
// the last bucket.
func (c *core) launchComplete() {
	for c.phase == reducing && c.launched < len(c.buckets)-1 && c.pending[c.launched] == 0 {
		c.act(action{kind: launch, bucket: c.launched})
		c.launched++
	}
}

// launchRest launches the remaining buckets. Before the last one it sets the shadow flag, asks to
// stop, and raises the flag, where that applies. The flag is raised if a gradient is missing or the pass
// failed.
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

// knownOrder returns the order in which the parameters became ready in the pass that was finished
// last, followed by the unused ones. It returns nil if a gradient was missing, or if the pass was a
// shadow.
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
