import pytest
import torch

from purereplay.learners.baselines.gdumb import WarmRestarts


@pytest.mark.parametrize("steps_per_epoch", [1, 7])
def test_learning_rates_restart_as_pytorchs_own_schedule_does(steps_per_epoch):
    """T_0 = 1, T_mult = 2, a value for every batch of 20 epochs: restarts at 1, 3, 7 and 15."""
    how = WarmRestarts(epochs=20, batch_size=16, lr=0.05, min_lr=5e-4)
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.05)
    schedule = torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(optimizer, T_0=1, T_mult=2, eta_min=5e-4)
    expected = []
    for step in range(20 * steps_per_epoch):
        optimizer.step()
        schedule.step(step / steps_per_epoch)
        expected.append(optimizer.param_groups[0]["lr"])
    found = how.lrs(steps_per_epoch)
    torch.testing.assert_close(found, torch.tensor(expected), rtol=1e-5, atol=1e-7)
    assert (found[[0, steps_per_epoch, 3 * steps_per_epoch, 7 * steps_per_epoch]] == 0.05).all()
