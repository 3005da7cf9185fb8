#include "textflag.h"

// func callers(pcs *[maxFrames]uintptr) int
//
// The frame pointers of a goroutine form a list: BP points to the caller's BP. The return
// address is in the word above. The walk stays within the goroutine's stack, whose bounds are
// the first two words of g, and goes upwards only. The function is NOSPLIT and has no frame, so
// the runtime cannot move the stack during the walk.
TEXT ·callers(SB), NOSPLIT, $0-16
	MOVQ TLS, CX
	MOVQ 0(CX)(TLS*1), CX
	MOVQ 8(CX), DX          // the stack's end
	SUBQ $16, DX            // the highest address of a frame's two words
	MOVQ 0(CX), CX          // the stack's beginning
	MOVQ pcs+0(FP), DI
	MOVQ BP, SI
	XORQ AX, AX

next:
	CMPQ SI, CX
	JLS  done
	CMPQ SI, DX
	JHI  done
	MOVQ 8(SI), BX
	MOVQ BX, (DI)(AX*8)
	MOVQ SI, CX
	MOVQ 0(SI), SI
	INCQ AX
	CMPQ AX, $16
	JLT  next

done:
	MOVQ AX, ret+8(FP)
	RET
