package process

import (
	"runtime/debug"
	"testing"
	"testing/synctest"
	"time"
)

// usualPercent is the collector's target outside of transfers in these tests.
const usualPercent = 50

// inBubble runs a test with the usual target and fake time.
func inBubble(t *testing.T, test func(t *testing.T)) {
	defer debug.SetGCPercent(debug.SetGCPercent(usualPercent))
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
			var flow BulkFlow
			var transfer BulkMeter
			flow.Add(bigCall)
			transfer.Add(leastBulk)
			time.Sleep(quiet)
			expect(t, BulkPercent)
			transfer.Close()
			expect(t, usualPercent)
		})
	})
	t.Run("the transfer ends first", func(t *testing.T) {
		inBubble(t, func(t *testing.T) {
			var flow BulkFlow
			var transfer BulkMeter
			transfer.Add(leastBulk)
			flow.Add(bigCall)
			transfer.Close()
			expect(t, BulkPercent)
			time.Sleep(quiet)
			expect(t, usualPercent)
		})
	})
}

func TestTransfersThatOverlapRestoreTheTarget(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		var first, second BulkMeter
		first.Add(leastBulk)
		second.Add(leastBulk)
		first.Close()
		expect(t, BulkPercent)
		second.Close()
		second.Close()
		expect(t, usualPercent)
	})
}

func TestAFlowLastsUntilNoBigCallCameForAWhile(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		var flow BulkFlow
		for range 3 {
			flow.Add(bigCall)
			time.Sleep(quiet - time.Millisecond)
			expect(t, BulkPercent)
		}
		time.Sleep(time.Millisecond)
		expect(t, usualPercent)
		flow.Add(bigCall) // it can begin again
		expect(t, BulkPercent)
		time.Sleep(quiet)
		expect(t, usualPercent)
	})
}

func TestLittleDataLeavesTheTargetAlone(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		var flow BulkFlow
		var transfer BulkMeter
		flow.Add(bigCall - 1)
		transfer.Add(leastBulk - 1)
		expect(t, usualPercent)
		transfer.Close()
		expect(t, usualPercent)
	})
}
