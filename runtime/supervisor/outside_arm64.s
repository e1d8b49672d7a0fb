#include "textflag.h"

// Handlers in the C calling convention: R0 is the signal, R1 points to siginfo_t, in which
// the code is at 8 and the sender at 16. RET goes to the restorer.

DATA ·handleSentAt(SB)/8, $handleSent<>(SB)
GLOBL ·handleSentAt(SB), RODATA, $8

DATA ·handleTermAt(SB)/8, $handleTerm<>(SB)
GLOBL ·handleTermAt(SB), RODATA, $8

TEXT handleSent<>(SB), NOSPLIT|NOFRAME, $0
	MOVW 8(R1), R9
	CMPW $0, R9
	BLE  drop
	MOVD ·runtimeHandler(SB), R9
	JMP  (R9)
drop:
	RET

TEXT handleTerm<>(SB), NOSPLIT|NOFRAME, $0
	MOVW 8(R1), R9 // SI_USER is 0
	CBNZW R9, drop
	MOVW 16(R1), R9
	CBNZW R9, drop
	MOVW ·termFD(SB), R0
	MOVD $·termOne(SB), R1
	MOVD $8, R2
	MOVD $64, R8 // write
	SVC
drop:
	RET
