package nn

import (
	"iter"
	"slices"
)

// Container holds the parts of a model. A custom model embeds a Container and registers its parts with
// [Add]. The model then has the methods needed for placing, saving, casting and training.
//
//	type Block struct {
//		nn.Container
//		in, out *nn.LinearLayer
//	}
//
//	func NewBlock(d int) *Block {
//		b := &Block{}
//		b.in = nn.Add(&b.Container, "in", nn.Linear(d, 4*d, nil))
//		b.out = nn.Add(&b.Container, "out", nn.Linear(4*d, d, nil))
//		return b
//	}
//
// The zero Container is empty and in training mode. A Container must not be copied.
type Container struct {
	mode
	parts   []part
	params  []*Parameter // the last result of Parameters
	buffers []*Buffer    // the last result of Buffers

	parent *Container // the first container that this one was added to, or nil
	name   string     // its name in parent
}

// part is a model in a container. The names of its parameters start with prefix.
type part struct {
	name, prefix string
	model        Model
}

// Add registers m as a part of c and returns m. The name of a parameter in c is the part's name, a dot,
// and the parameter's name in m. A part's name may contain dots ("h.0"). Add panics with a
// [*DuplicateNameError] if c already has a part of that name.
//
// If several parts share a parameter, c has it once, under its first name. Weights are tied by assignment,
// before or after Add:
//
//	head.Weight = embedding.Weight
func Add[M Model](c *Container, name string, m M) M {
	known := map[*value]bool{}
	for _, p := range c.Parameters() {
		known[p.value] = true
	}
	c.add(part{name, name + ".", m})
	for _, p := range m.Parameters() {
		if !known[p.value] {
			p.rename(name + "." + p.name)
		}
	}
	if inner := containerOf(m); inner != nil && inner.parent == nil {
		inner.parent, inner.name = c, name
	}
	return m
}

// AddParameter registers a parameter of c itself, under the parameter's name, and returns it.
func (c *Container) AddParameter(p *Parameter) *Parameter {
	c.add(part{p.name, "", ownParameter{p}})
	return p
}

// AddBuffer registers a buffer of c itself, under the buffer's name, and returns it.
func (c *Container) AddBuffer(b *Buffer) *Buffer {
	c.add(part{b.name, "", ownBuffer{b}})
	return b
}

func (c *Container) add(p part) {
	if slices.ContainsFunc(c.parts, func(q part) bool { return q.name == p.name }) {
		panic(&DuplicateNameError{p.name})
	}
	c.parts = append(c.parts, p)
}

// Parameters returns the parameters of all parts, each once, in the order of registration.
func (c *Container) Parameters() []*Parameter {
	var all []*Parameter
	seen := map[*value]bool{}
	for _, part := range c.parts {
		for _, p := range part.model.Parameters() {
			if seen[p.value] {
				continue
			}
			seen[p.value] = true
			named := &Parameter{part.prefix + p.name, p.value}
			if i := len(all); i < len(c.params) && *c.params[i] == *named {
				named = c.params[i]
			}
			all = append(all, named)
		}
	}
	c.params = all
	return slices.Clone(all)
}

// Buffers returns the buffers of all parts, each once, in the order of registration.
func (c *Container) Buffers() []*Buffer {
	var all []*Buffer
	seen := map[*value]bool{}
	for _, part := range c.parts {
		for _, b := range Buffers(part.model) {
			if seen[b.value] {
				continue
			}
			seen[b.value] = true
			named := &Buffer{part.prefix + b.name, b.value, b.span}
			if i := len(all); i < len(c.buffers) && *c.buffers[i] == *named {
				named = c.buffers[i]
			}
			all = append(all, named)
		}
	}
	c.buffers = all
	return slices.Clone(all)
}

// SetTraining sets the mode of c and of all parts: see [Train] and [Eval].
func (c *Container) SetTraining(on bool) {
	c.mode.SetTraining(on)
	for _, p := range c.parts {
		setTraining(p.model, on)
	}
}

func (c *Container) container() *Container { return c }

// Parts yields m and all models within it, at any depth: the parts of containers and Sequentials, the
// modules within Residual and Checkpoint, and the result of a method Unwrap() [Model], which ddp.Model has.
func Parts(m Model) iter.Seq[Model] {
	return func(yield func(Model) bool) { parts(m, yield) }
}

func parts(m Model, yield func(Model) bool) bool {
	if !yield(m) {
		return false
	}
	switch m := m.(type) {
	case interface{ wrapped() Module }:
		return parts(m.wrapped(), yield)
	case interface{ Unwrap() Model }:
		return parts(m.Unwrap(), yield)
	case interface{ container() *Container }:
		for _, p := range m.container().parts {
			if !parts(p.model, yield) {
				return false
			}
		}
	}
	return true
}

// containerOf returns the container that m embeds, or nil if m does not embed one.
func containerOf(m Model) *Container {
	if h, ok := m.(interface{ container() *Container }); ok {
		return h.container()
	}
	return nil
}

// path returns the name of a part of c in the outermost model.
func (c *Container) path(part string) string {
	if c.parent == nil {
		return part
	}
	return c.parent.path(c.name + "." + part)
}

// ownParameter adapts a parameter to a part of a container.
type ownParameter struct{ p *Parameter }

func (o ownParameter) Parameters() []*Parameter { return []*Parameter{o.p} }

// ownBuffer adapts a buffer to a part of a container.
type ownBuffer struct{ b *Buffer }

func (o ownBuffer) Parameters() []*Parameter { return nil }
func (o ownBuffer) Buffers() []*Buffer       { return []*Buffer{o.b} }
