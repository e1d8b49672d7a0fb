#include "textflag.h"

// Handlers in the C calling convention: DI is the signal, SI points to siginfo_t, in which
// the code is at 8 and the sender at 16. RET goes to the restorer.

DATA ·handleSentAt(SB)/8, $handleSent<>(SB)
GLOBL ·handleSentAt(SB), RODATA, $8

DATA ·handleTermAt(SB)/8, $handleTerm<>(SB)
GLOBL ·handleTermAt(SB), RODATA, $8

TEXT handleSent<>(SB), NOSPLIT|NOFRAME, $0
	CMPL 8(SI), $0
	JLE  drop
	MOVQ ·runtimeHandler(SB), AX
	JMP  AX
drop:
	RET

TEXT handleTerm<>(SB), NOSPLIT|NOFRAME, $0
	CMPL 8(SI), $0 // SI_USER
	JNE  drop
	CMPL 16(SI), $0
	JNE  drop
	MOVL ·termFD(SB), DI
	LEAQ ·termOne(SB), SI
	MOVL $8, DX
	MOVL $1, AX // write
	SYSCALL
drop:
	RET
