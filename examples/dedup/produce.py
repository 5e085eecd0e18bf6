# produce.py
import json
import os

from confluent_kafka import Producer

producer = Producer({"bootstrap.servers": os.environ["KAFKA"]})
for number in range(1000):
    order = {"shop": f"shop-{number % 3}", "order_id": number, "amount": number / 4}
    producer.produce("placed", json.dumps(order))
    if number % 10 in (2, 5, 8):  # it got no answer, and sends the order again
        producer.produce("placed", json.dumps(order))
producer.flush()
