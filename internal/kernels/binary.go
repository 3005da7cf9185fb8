package kernels

// BinaryOp is an elementwise function of two operands.
type BinaryOp uint8

// The elementwise functions of two operands.
const (
	Add BinaryOp = iota
	Sub
	Mul
	Div
)

func (o BinaryOp) String() string { return [...]string{"Add", "Sub", "Mul", "Div"}[o] }
