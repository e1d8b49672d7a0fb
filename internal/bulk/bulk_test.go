package bulk

import (
	"runtime/debug"
	"testing"
	"testing/synctest"
	"time"
)

// usual is the collector's target outside of transfers in these tests.
const usual = 50

// inBubble runs a test with the usual target and fake time.
func inBubble(t *testing.T, test func(t *testing.T)) {
	defer debug.SetGCPercent(debug.SetGCPercent(usual))
	synctest.Test(t, test)
}

// expect checks the collector's target.
func expect(t *testing.T, want int) {
	t.Helper()
	synctest.Wait()
	got := debug.SetGCPercent(want)
	if got != want {
		t.Fatalf("the target is %d, not %d", got, want)
	}
}

func TestFlowAndTransferThatOverlapRestoreTheTarget(t *testing.T) {
	t.Run("the flow ends first", func(t *testing.T) {
		inBubble(t, func(t *testing.T) {
			var flow Flow
			var transfer Meter
			flow.Add(bigCall)
			transfer.Add(least)
			time.Sleep(quiet)
			expect(t, Percent)
			transfer.Close()
			expect(t, usual)
		})
	})
	t.Run("the transfer ends first", func(t *testing.T) {
		inBubble(t, func(t *testing.T) {
			var flow Flow
			var transfer Meter
			transfer.Add(least)
			flow.Add(bigCall)
			transfer.Close()
			expect(t, Percent)
			time.Sleep(quiet)
			expect(t, usual)
		})
	})
}

func TestTransfersThatOverlapRestoreTheTarget(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		var first, second Meter
		first.Add(least)
		second.Add(least)
		first.Close()
		expect(t, Percent)
		second.Close()
		second.Close()
		expect(t, usual)
	})
}

func TestAFlowLastsUntilNoBigCallCameForAWhile(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		var flow Flow
		for range 3 {
			flow.Add(bigCall)
			time.Sleep(quiet - time.Millisecond)
			expect(t, Percent)
		}
		time.Sleep(time.Millisecond)
		expect(t, usual)
		flow.Add(bigCall) // it can begin again
		expect(t, Percent)
		time.Sleep(quiet)
		expect(t, usual)
	})
}

func TestLittleDataLeavesTheTargetAlone(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		var flow Flow
		var transfer Meter
		flow.Add(bigCall - 1)
		transfer.Add(least - 1)
		expect(t, usual)
		transfer.Close()
		expect(t, usual)
	})
}
