"""Law 2, at least once and never zero, whatever is killed at whatever moment."""

import pytest

from tests.laws.campaign import CONSUMER_POINTS, PIPELINE_POINTS, RELAY_POINTS, Campaign


def test_relay_and_consumer_survive_kills_at_crash_points_and_random_moments(tmp_path, seed):
    campaign = Campaign(tmp_path, seed, with_pipeline=False)
    try:
        campaign.start()
        points = campaign.dice.sample(RELAY_POINTS, 5)
        for number, point in enumerate(points):
            campaign.kill_relay(f"{point}:{campaign.dice.randint(1, 30)}")
            campaign.kill_part(
                campaign.consumer, f"{campaign.dice.choice(CONSUMER_POINTS)}:{campaign.dice.randint(1, 30)}"
            )
            if number == 2:
                campaign.alter()
            campaign.run_for(campaign.dice.uniform(0.3, 2))
        campaign.wait_until("a death at a crash point", lambda: campaign.crashes > 0)  # on a busy machine
        campaign.finish()
        assert campaign.crashes, f"seed {seed}: no process died at a crash point"
    finally:
        campaign.stop()


@pytest.mark.spark
@pytest.mark.always
@pytest.mark.timeout(600)
def test_everything_survives_kills_and_the_copies_are_identical(tmp_path, seed):
    campaign = Campaign(tmp_path, seed, with_pipeline=True)
    try:
        points = campaign.dice.sample(PIPELINE_POINTS, 2)
        campaign.pipeline_points = points[1:]  # its next start, after its death at the first
        campaign.start(points[0])
        for number, point in enumerate(points, 1):  # in each round, the relay dies and the pipeline
            campaign.kill_part(campaign.consumer)
            campaign.kill_relay("log.append.torn:20")
            campaign.wait_until(f"death at {point}", lambda least=2 * number: campaign.crashes >= least, 120)
            campaign.alter()
        campaign.finish()
        assert campaign.crashes, f"seed {seed}: no process died at a crash point"
    finally:
        campaign.stop()


@pytest.mark.soak
@pytest.mark.timeout(6 * 3600)
def test_two_hundred_cycles_of_kills(tmp_path, seed):
    campaign = Campaign(tmp_path, seed, with_pipeline=True)
    try:
        campaign.start()
        for cycle in range(200):
            campaign.kill_relay(f"{campaign.dice.choice(RELAY_POINTS)}:{campaign.dice.randint(1, 50)}")
            campaign.kill_part(
                campaign.consumer, f"{campaign.dice.choice(CONSUMER_POINTS)}:{campaign.dice.randint(1, 50)}"
            )
            if cycle % 4 == 0:
                point = f"{campaign.dice.choice(PIPELINE_POINTS)}:{campaign.dice.randint(1, 5)}"
                campaign.kill_part(campaign.pipeline, point)
            if cycle % 25 == 10:
                campaign.alter()
            campaign.run_for(campaign.dice.uniform(0.2, 8))
        campaign.finish()
        assert campaign.crashes, f"seed {seed}: no process died at a crash point"
    finally:
        campaign.stop()
