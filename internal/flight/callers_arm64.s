#include "textflag.h"

// func callers(pcs *[maxFrames]uintptr) int
//
// The frame pointers of a goroutine form a list: R29 points to the caller's R29. The return
// address is in the word above. The walk stays within the goroutine's stack, whose bounds are
// the first two words of g, and goes upwards only. The function is NOSPLIT and has no frame, so
// the runtime cannot move the stack during the walk.
TEXT ·callers(SB), NOSPLIT, $0-16
	MOVD 0(g), R1           // the stack's beginning
	MOVD 8(g), R2           // its end
	SUB  $16, R2            // the highest address of a frame's two words
	MOVD pcs+0(FP), R3
	MOVD R29, R4
	MOVD $0, R0

next:
	CMP  R1, R4
	BLS  done
	CMP  R2, R4
	BHI  done
	MOVD 8(R4), R5
	MOVD R5, (R3)(R0<<3)
	MOVD R4, R1
	MOVD 0(R4), R4
	ADD  $1, R0
	CMP  $16, R0
	BLT  next

done:
	MOVD R0, ret+8(FP)
	RET
